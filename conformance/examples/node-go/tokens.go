package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// A content is what one whole page holds: token ids, or a key that stands for tokens whose ids are not given.
type content struct {
	ids string // idSize bytes each
	key string
}

const idSize = 8

// Tokens are a sequence, cut into whole pages and a rest of less than a page.
type tokens struct {
	pageSize int
	pages    []content
	rest     []byte // its ids, as those of a content
}

func (t *tokens) len() int {
	return len(t.pages)*t.pageSize + len(t.rest)/idSize
}

func (t *tokens) push(ids ...int64) {
	for _, id := range ids {
		t.rest = binary.BigEndian.AppendUint64(t.rest, uint64(id))
		if len(t.rest) == t.pageSize*idSize {
			t.pages = append(t.pages, content{ids: string(t.rest)})
			t.rest = nil
		}
	}
}

// startsWith says whether the sequence begins with history, or is equal to it.
func (t *tokens) startsWith(history *tokens) bool {
	whole := len(history.pages)
	if len(t.pages) < whole || !slices.Equal(t.pages[:whole], history.pages) {
		return false
	}
	following := string(t.rest)
	if len(t.pages) > whole {
		following = t.pages[whole].ids
	}
	return strings.HasPrefix(following, string(history.rest))
}

// readTokens reads a sequence as a trace writes it: ids, and at page borders keys of whole pages.
func readTokens(pageSize int, elements []json.RawMessage) (tokens, error) {
	read := tokens{pageSize: pageSize}
	for _, element := range elements {
		var id int64
		var key string
		if json.Unmarshal(element, &id) == nil {
			read.push(id)
		} else if err := json.Unmarshal(element, &key); err != nil {
			return read, err
		} else if len(read.rest) > 0 {
			return read, errors.New("a page key does not stand at a page border")
		} else {
			read.pages = append(read.pages, content{key: key})
		}
	}
	return read, nil
}
