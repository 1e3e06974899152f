// towline-templates renders templates with Go's own text/template and the functions that the hub's syncsets have, so that what
// Towline makes of them can be compared.
//
// Templates are on stdin, one JSON object a line (see question); the answers are on stdout, in the same order. Exit status: 1 if
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
)

type question struct {
	Template string            `json:"template"`
	Labels   map[string]string `json:"labels"`
}

type answer struct {
	// What the template makes; absent if there is an error.
	Text *string `json:"text,omitempty"`
	// Whether it is a template at all.
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
		if err := answers.Encode(render(asked)); err != nil {
			return err
		}
	}
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
