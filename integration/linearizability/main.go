// towline-linearizability reads the history of conditional writes and reads that clients of the hub recorded, and says whether it
// is linearizable: whether each operation can have happened at one moment between its call and its return, in one order, as if
// there were a single replica.
//
// The history is on stdin, one operation a line (see operation). Documents are independent of each other, so each is checked alone.
// Exit status: 0 linearizable; 1 not, with the operations of the first such document on stdout; 2 the history can't be read, or
// could not be decided in time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Far longer than the history of one document takes.
const decideWithin = time.Minute

// An operation on a document, as its client saw it.
type operation struct {
	Client   int    `json:"client"`
	Document string `json:"document"`
	// "get" or "put".
	Op string `json:"op"`
	// Moments by one clock, in nanoseconds. An operation without a return may take effect at any later time, or never.
	Call   int64  `json:"call"`
	Return *int64 `json:"return,omitempty"`
	// Of a put: the version that it replaces; 0 creates the document.
	Expected int64 `json:"expected,omitempty"`
	// What a put writes, and what a get has read.
	Value string `json:"value,omitempty"`
	// "ok", "conflict" (the document has another version), "absent" (a get found nothing) or "unknown".
	Outcome string `json:"outcome"`
	// Of an "ok": the version of the document now.
	Version int64 `json:"version,omitempty"`
}

// A document. Its version is 0 while it does not exist, and unknown after a write whose answer was lost, until it is read.
type document struct {
	version int64
	value   string
	// The version must be higher than this one, where it is unknown.
	above int64
}

const unknown = -1

// step gives the states that a document may have after an operation. There is none if the operation can't happen in this state.
func step(before document, done operation) []any {
	if done.Op == "get" {
		return read(before, done)
	}
	written := document{version: done.Version, value: done.Value}
	// No client knows an unknown version, so that no operation can expect it.
	fits := before.version == done.Expected
	switch done.Outcome {
	case "ok":
		if fits && done.Version > done.Expected {
			return []any{written}
		}
	case "conflict":
		if !fits {
			return []any{before}
		}
	case "unknown":
		if fits {
			return []any{before, document{version: unknown, value: done.Value, above: done.Expected}}
		}
		return []any{before}
	}
	return nil
}

func read(before document, done operation) []any {
	switch {
	case done.Outcome == "absent" && before.version == 0:
		return []any{before}
	case done.Outcome != "ok" || before.value != done.Value || before.version == 0:
		return nil
	case before.version == done.Version:
		return []any{before}
	case before.version == unknown && done.Version > before.above:
		return []any{document{version: done.Version, value: done.Value}}
	}
	return nil
}

var model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{document{}} },
	Step: func(state, input, _ any) []any { return step(state.(document), input.(operation)) },
}

func (done operation) check() error {
	known := map[string][]string{"get": {"ok", "absent"}, "put": {"ok", "conflict", "unknown"}}
	if !slices.Contains(known[done.Op], done.Outcome) {
		return fmt.Errorf("outcome %q of operation %q", done.Outcome, done.Op)
	}
	if (done.Return == nil) != (done.Outcome == "unknown") {
		return fmt.Errorf("all outcomes but unknown ones have a return")
	}
	if (done.Version > 0) != (done.Outcome == "ok") || done.Document == "" {
		return fmt.Errorf("a document, and a version with outcome ok, are required")
	}
	return nil
}

func history(input io.Reader) (map[string][]operation, error) {
	documents := map[string][]operation{}
	lines := bufio.NewScanner(input)
	for number := 1; lines.Scan(); number++ {
		var done operation
		err := json.Unmarshal(lines.Bytes(), &done)
		if err == nil {
			err = done.check()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		documents[done.Document] = append(documents[done.Document], done)
	}
	return documents, lines.Err()
}

func check(all []operation) porcupine.CheckResult {
	operations := make([]porcupine.Operation, 0, len(all))
	for _, done := range all {
		end := int64(math.MaxInt64)
		if done.Return != nil {
			end = *done.Return
		}
		operations = append(operations,
			porcupine.Operation{ClientId: done.Client, Input: done, Call: done.Call, Return: end})
	}
	return porcupine.CheckOperationsTimeout(model.ToModel(), operations, decideWithin)
}

func main() {
	documents, err := history(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearizability:", err)
		os.Exit(2)
	}
	for name, all := range documents {
		switch check(all) {
		case porcupine.Ok:
		case porcupine.Unknown:
			fmt.Fprintf(os.Stderr, "linearizability: %s: not decided within %s\n", name, decideWithin)
			os.Exit(2)
		default:
			fmt.Printf("%s is not linearizable:\n", name)
			slices.SortFunc(all, func(one, other operation) int { return int(one.Call - other.Call) })
			for _, done := range all {
				text, _ := json.Marshal(done)
				fmt.Println(string(text))
			}
			os.Exit(1)
		}
	}
	fmt.Printf("%d documents are linearizable\n", len(documents))
}
