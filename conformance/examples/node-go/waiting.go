package main

import "encoding/json"

// The arguments of operations on one request, and of those on one session.
type (
	onRequest struct{ Req string }
	onSession struct{ Session string }
)

func (m *manager) openSession(a onSession) (answer, error) {
	if m.sessions[a.Session] != nil {
		return nil, refuse("OP-1", "session %s is open already", a.Session)
	}
	m.sessions[a.Session] = &session{name: a.Session, history: tokens{pageSize: m.PageSize}}
	return answer{}, nil
}

type submission struct {
	Req     string
	Tokens  []json.RawMessage
	Session *string
}

func (m *manager) submit(a submission) (answer, error) {
	if m.requests[a.Req] != nil {
		return nil, refuse("OP-1", "there is a request %s already", a.Req)
	}
	read, err := readTokens(m.PageSize, a.Tokens)
	if err != nil {
		return nil, refuse("OP-1", "%v", err)
	}
	if read.len() == 0 {
		return nil, refuse("OP-1", "request %s has no tokens", a.Req)
	}
	if read.len() > m.MaxContextLen {
		return nil, refuse("LEN-1", "%d tokens exceed the context", read.len())
	}
	r := &request{name: a.Req, tokens: read}
	if a.Session != nil {
		if r.session, err = m.session(*a.Session); err != nil {
			return nil, err
		}
		if err := r.session.accepts(&read); err != nil {
			return nil, err
		}
		r.session.turn = r
	}
	m.requests[a.Req] = r
	return answer{}, nil
}

// accepts refuses a turn that cannot be the session's next one.
func (s *session) accepts(turn *tokens) error {
	switch {
	case s.closing:
		return refuse("OP-1", "session %s is closing", s.name)
	case s.turn != nil:
		return refuse("SESS-1", "session %s has a turn in flight", s.name)
	case !turn.startsWith(&s.history):
		return refuse("SESS-6", "the tokens do not begin with the history of session %s", s.name)
	}
	return nil
}

func (m *manager) matchPrefix(a onRequest) (answer, error) {
	r, err := m.request(a.Req)
	if err != nil {
		return nil, err
	}
	if r.run != nil {
		return nil, refuse("OP-1", "request %s is running", a.Req)
	}
	if s := r.session; s != nil && r.record == nil {
		r.record, s.record = s.record, nil
	}
	// The last token is always computed anew.
	reusable, protected := r.tokens.len()-1, 0
	r.matched, r.resumed = true, r.record != nil && min(r.record.committed, reusable) > 0
	if kept := r.record; r.resumed {
		// The next extend writes from prefixLen on: whole pages behind it would be lost.
		r.prefixLen, protected = min(kept.committed, reusable), kept.protected
		m.cut(kept, r.prefixLen)
		kept.committed, kept.allocated = r.prefixLen, r.prefixLen
	} else {
		m.release(kept)
		r.record = nil
		end := m.store.find(r.tokens.pages[:reusable/m.PageSize])
		m.store.touch(end)
		r.prefixLen = end.depth * m.PageSize
		protected = r.prefixLen
	}
	return answer{"prefix_len": r.prefixLen, "protected_len": protected, "freed": m.freed}, nil
}
