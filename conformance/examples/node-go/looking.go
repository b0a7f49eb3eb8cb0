package main

import (
	"maps"
	"slices"
)

// holders returns the records of requests, and those of idle sessions, by name.
func (m *manager) holders() (requests, sessions map[string]*record) {
	requests, sessions = map[string]*record{}, map[string]*record{}
	for name, r := range m.requests {
		if r.record != nil {
			requests[name] = r.record
		}
	}
	for name, s := range m.sessions {
		if s.record != nil {
			sessions[name] = s.record
		}
	}
	return requests, sessions
}

type inspection struct{ Mode string }

func (m *manager) report(a inspection) (answer, error) {
	requests, sessions := m.holders()
	if a.Mode == "idle" && len(requests) > 0 {
		return nil, refuse("OP-1", "a request holds memory")
	}
	if m.TurnsCountAs == "sessions" {
		maps.DeleteFunc(requests, func(name string, r *record) bool {
			s := m.requests[name].session
			if s != nil {
				sessions[s.name] = r
			}
			return s != nil
		})
	}
	locked := m.store.locked()
	return answer{
		"available":      len(m.freePages) * m.PageSize,
		"evictable":      (len(m.store.nodes) - locked) * m.PageSize,
		"protected":      locked * m.PageSize,
		"session_held":   m.held(sessions),
		"uncached":       m.held(requests),
		"rows_available": len(m.freeRows),
		"rows_requests":  len(requests),
		"rows_sessions":  len(sessions),
		"rows_withheld":  len(m.withheld),
	}, nil
}

// held is how many positions the holders' own pages have.
func (m *manager) held(holders map[string]*record) int {
	sum := 0
	for _, r := range holders {
		sum += m.pages(r.allocated)*m.PageSize - r.protected
	}
	return sum
}

func (m *manager) snapshot(struct{}) (answer, error) {
	requests, sessions := m.holders()
	rows, locks := map[int][][2]int{}, map[int]int{}
	for _, holders := range []map[string]*record{requests, sessions} {
		for _, r := range holders {
			rows[r.row] = m.slots(r)
		}
	}
	for page, n := range m.store.nodes {
		if n.locks > 0 {
			locks[page] = n.locks
		}
	}
	return answer{
		"rows":          rows,
		"free_rows":     m.freeRows,
		"withheld_rows": m.withheld,
		"free_pages":    m.freePages,
		"store_pages":   slices.AppendSeq([]int{}, maps.Keys(m.store.nodes)),
		"requests":      views(requests),
		"sessions":      views(sessions),
		"locks":         locks,
	}, nil
}

// slots returns the slot of each allocated position, a run for each page.
func (m *manager) slots(r *record) [][2]int {
	runs := [][2]int{}
	for index, page := range r.table {
		runs = append(runs, [2]int{page * m.PageSize, min(m.PageSize, r.allocated-index*m.PageSize)})
	}
	return runs
}

func views(holders map[string]*record) map[string]answer {
	told := map[string]answer{}
	for name, r := range holders {
		told[name] = answer{
			"row":           r.row,
			"protected_len": r.protected,
			"committed_len": r.committed,
			"allocated_len": r.allocated,
		}
	}
	return told
}
