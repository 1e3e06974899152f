// towline-templates does what Kubernetes' programs and Hive do with texts, so that what Towline makes of them can be compared: it
// renders templates with Go's own text/template and the functions that the hub's syncsets have, and turns YAML into JSON with the
// decoder of kubectl.
//
// The texts are on stdin, one JSON object a line (see question); the answers are on stdout, in the same order. Exit status: 1 if
// a line can't be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"
)

type question struct {
	// A document, or else a template.
	YAML     *string           `json:"yaml"`
	Template string            `json:"template"`
	Labels   map[string]string `json:"labels"`
}

type answer struct {
	// What the template makes, or the document as JSON; absent if there is an error.
	Text *string `json:"text,omitempty"`
	// Whether it is a template or a document at all.
	Parsed bool   `json:"parsed"`
	Error  string `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "templates:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	questions := json.NewDecoder(bufio.NewReader(in))
	buffered := bufio.NewWriter(out)
	answers := json.NewEncoder(buffered)
	for {
		var asked question
		if err := questions.Decode(&asked); err == io.EOF {
			return buffered.Flush()
		} else if err != nil {
			return err
		}
		answered := decode
		if asked.YAML == nil {
			answered = render
		}
		if err := answers.Encode(answered(asked)); err != nil {
			return err
		}
	}
}

func decode(asked question) answer {
	decoded, err := yaml.YAMLToJSON([]byte(*asked.YAML))
	if err != nil {
		return answer{Error: err.Error()}
	}
	text := string(decoded)
	return answer{Text: &text, Parsed: true}
}

func render(asked question) answer {
	label := func(key string) string { return asked.Labels[key] }
	functions := template.FuncMap{"fromCDLabel": label, "fromClusterLabel": label}
	parsed, err := template.New("").Funcs(functions).Parse(asked.Template)
	if err != nil {
		return answer{Error: err.Error()}
	}
	var text strings.Builder
	if err := parsed.Execute(&text, nil); err != nil {
		return answer{Parsed: true, Error: err.Error()}
	}
	made := text.String()
	return answer{Text: &made, Parsed: true}
}
