// Node is a KV-cache manager of the request level that kvspec can check. It uses the standard library alone.
//
//	go build -o node . && kvspec run --impl exec:./node
//
// It has pages of any size, rows, a prefix store, chunked prefill, overlapped launches, streaming sessions and
// speculative decoding; no sliding window and no recurrent states. The manager is the part that an engine has. This
// file is the protocol: it reads operations and writes answers, each a line of JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
)

var hello = answer{
	"kvspec":      2,
	"name":        "node-go",
	"version":     "1",
	"unsupported": []string{"sliding_window", "recurrent_states"},
	"policies": map[string][]string{
		"rows_read":         {"until_complete", "at_launch", "in_order"},
		"first_turn_chunks": {"private", "published"},
		"turns_count_as":    {"requests", "sessions"},
	},
	"reset": true,
}

// A handler carries out an operation whose arguments are still JSON.
type handler func(m *manager, line []byte) (answer, error)

// on decodes the arguments of an operation, for the method that carries it out.
func on[A any](carryOut func(*manager, A) (answer, error)) handler {
	return func(m *manager, line []byte) (answer, error) {
		var arguments A
		if err := json.Unmarshal(line, &arguments); err != nil {
			return nil, refuse("OP-1", "%v", err)
		}
		return carryOut(m, arguments)
	}
}

var operations = map[string]handler{
	"open_session":     on((*manager).openSession),
	"submit":           on((*manager).submit),
	"match_prefix":     on((*manager).matchPrefix),
	"extend":           on((*manager).extend),
	"decode":           on((*manager).decode),
	"launch":           on((*manager).launch),
	"complete":         on((*manager).complete),
	"verify":           on((*manager).verify),
	"cache_unfinished": on((*manager).cacheUnfinished),
	"finish":           on((*manager).finish),
	"retract":          on((*manager).retract),
	"abort":            on((*manager).abort),
	"close_session":    on((*manager).closeSession),
	"preempt":          on((*manager).preempt),
	"evict":            on((*manager).evict),
	"report":           on((*manager).report),
	"snapshot":         on((*manager).snapshot),
}

// reply carries an operation out and returns the line that answers it.
func reply(m *manager, op string, line []byte) answer {
	carryOut, known := operations[op]
	if !known {
		return answer{"op": op, "refused": refuse("OP-1", "there is no operation %q", op)}
	}
	m.freed = []int{}
	obs, err := carryOut(m, line)
	if err != nil {
		return answer{"op": op, "refused": err}
	}
	return answer{"op": op, "obs": obs}
}

func serve(input io.Reader, output io.Writer) error {
	lines, answers := json.NewDecoder(input), json.NewEncoder(output)
	if err := answers.Encode(hello); err != nil {
		return err
	}
	var m *manager
	for {
		var line json.RawMessage
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		// A header has sizes, and an operation has a name.
		read := struct {
			Op     string
			Config *config
		}{}
		if err := json.Unmarshal(line, &read); err != nil {
			return err
		}
		switch {
		case read.Config != nil && read.Config.PageSize < 1:
			return fmt.Errorf("pages of %d tokens", read.Config.PageSize)
		case read.Config != nil:
			m = newManager(*read.Config)
		case m == nil:
			return fmt.Errorf("%s comes before a header", read.Op)
		default:
			if err := answers.Encode(reply(m, read.Op, line)); err != nil {
				return err
			}
		}
	}
}

func main() {
	log.SetFlags(0)
	if err := serve(os.Stdin, os.Stdout); err != nil {
		log.Fatal("node: ", err)
	}
}
