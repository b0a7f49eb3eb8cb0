// The life of a request as memory events, in Go: go run events.go | kvspec check -
package main

import (
	"encoding/json"
	"fmt"
)

type event map[string]any

func main() {
	holder, pool, pages := "request 7", "kv", []int{1, 2}
	used := []event{{"table": holder, "stop": 6}}
	pools := event{pool: event{"page_size": 4, "num_pages": 64}}
	for _, told := range []event{
		{"kvspec": 2, "level": "memory", "producer": "events.go 1", "pools": pools},
		{"op": "take", "holder": holder, "pool": pool, "pages": pages},
		{"op": "map", "table": holder, "holder": holder, "pool": pool, "pages": pages, "labels": []string{"5f2e", "91c0"}},
		{"op": "begin", "id": 1, "stream": "compute", "writes": used, "reads": used},
		{"op": "end", "id": 1},
		{"op": "unmap", "table": holder},
		{"op": "release", "holder": holder, "pool": pool, "pages": pages},
		{"op": "end_holder", "holder": holder},
		{"op": "idle"},
	} {
		line, _ := json.Marshal(told)
		fmt.Println(string(line))
	}
}
