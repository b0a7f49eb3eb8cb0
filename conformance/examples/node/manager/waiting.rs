//! Operations on requests that wait, and on sessions before their turns.

use super::*;

impl Manager {
    pub(super) fn open_session(&mut self, name: &str) -> Answer {
        if self.sessions.contains_key(name) {
            return refuse("OP-1", format!("session {name} is open already"));
        }
        let session = Session { history: Tokens::new(self.page_size), record: None, turn: None, closing: false };
        self.sessions.insert(name.into(), session);
        Ok(vec![])
    }

    pub(super) fn submit(&mut self, req: &str, elements: &[Json], session: Option<&str>) -> Answer {
        if self.requests.contains_key(req) {
            return refuse("OP-1", format!("there is a request {req} already"));
        }
        let tokens = match Tokens::read(self.page_size, elements) {
            Some(tokens) if tokens.len() > 0 => tokens,
            _ => return refuse("OP-1", "there are no tokens, or a page key stands within a page"),
        };
        if tokens.len() > self.max_context_len {
            return refuse("LEN-1", format!("{} tokens exceed the context", tokens.len()));
        }
        if let Some(name) = session {
            let session = self.session(name)?;
            if session.closing {
                return refuse("OP-1", format!("session {name} is closing"));
            }
            if session.turn.is_some() {
                return refuse("SESS-1", format!("session {name} has a turn in flight"));
            }
            if !tokens.begins_with(&session.history) {
                return refuse("SESS-6", format!("the tokens do not begin with the history of session {name}"));
            }
            session.turn = Some(req.into());
        }
        let request = Request {
            tokens,
            session: session.map(str::to_string),
            prefix_len: None,
            resumed: false,
            extended: false,
            state: None,
            record: None,
            run: None,
        };
        self.requests.insert(req.into(), request);
        Ok(vec![])
    }

    pub(super) fn match_prefix(&mut self, req: &str) -> Answer {
        let size = self.page_size;
        let request = self.request(req)?;
        if request.run.is_some() {
            return refuse("OP-1", format!("request {req} is running"));
        }
        let key_len = request.tokens.len() - 1;
        let (session, lent) = (request.session.clone(), request.record.take());
        let record = lent.or_else(|| session.and_then(|name| self.sessions.get_mut(&name)?.record.take()));
        let resumed = record.map(|record| (self.resumable_len(&record, key_len), record));
        let (prefix_len, protected, record) = match resumed {
            Some((prefix_len, mut record)) if prefix_len > 0 => {
                // The next extend writes from prefix_len on: whole pages behind it go back, states are forgotten.
                for page in self.tables[record.row].split_off(prefix_len.div_ceil(size)) {
                    self.pages.free(page);
                }
                (record.committed, record.allocated) = (prefix_len, prefix_len);
                record.kept.retain(|&border, _| border <= prefix_len);
                (prefix_len, record.protected, Some(record))
            }
            other => {
                if let Some((_, record)) = other {
                    self.release(record);
                }
                let contents = &self.requests[req].tokens.pages;
                let contents = &contents[..contents.len().min(key_len / size)];
                let matched = self.store.find(contents, &self.pages).len() * size;
                (matched, matched, None)
            }
        };
        let request = self.request(req)?;
        request.prefix_len = Some(prefix_len);
        request.resumed = record.is_some();
        request.record = record;
        let mut answer = vec![("prefix_len", prefix_len.into()), ("protected_len", protected.into())];
        answer.extend(self.freed());
        Ok(answer)
    }

    /// Where a turn can go on with its session's record, `key_len` at most; 0: nowhere.
    fn resumable_len(&self, record: &Record, key_len: usize) -> usize {
        let target = record.committed.min(key_len);
        if record.states.is_empty() || record.state_len <= target {
            return target;
        }
        let kept = record.kept.range(record.protected..=target).next_back().map(|(border, _)| *border);
        let cached = self.store.nodes.get(&record.node).and_then(|cached| cached.state);
        kept.or(cached.map(|_| record.protected)).unwrap_or(0)
    }

    pub(super) fn take_state(&mut self, req: &str) -> Answer {
        let there_are_states = self.states.exists();
        let request = self.request(req)?;
        if !there_are_states || request.record.is_some() || request.state.is_some() || request.prefix_len.is_none() {
            return refuse("OP-1", format!("{req} has a state slot already, or has not matched its prefix"));
        }
        self.check_room(0, 0, 1)?;
        let slot = self.states.take();
        self.request(req)?.state = Some(slot);
        Ok(vec![("state", slot.into())])
    }

    pub(super) fn free_state(&mut self, req: &str) -> Answer {
        let Some(slot) = self.request(req)?.state.take() else {
            return refuse("OP-1", format!("{req} has no state slot without a row"));
        };
        self.states.give_back(slot);
        Ok(vec![("state", slot.into())])
    }
}
