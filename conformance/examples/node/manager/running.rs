//! Decode steps, launches, and their results.

use super::*;

impl Manager {
    pub(super) fn decode(&mut self, reqs: &[String], n: i64) -> Answer {
        if n < 1 {
            return refuse("OP-1", format!("n is {n}"));
        }
        if n > 1 && self.states.exists() {
            return refuse("OP-1", "a recurrent state cannot take drafts back");
        }
        check_batch(reqs)?;
        let (n, size, max) = (n as usize, self.page_size, self.max_context_len);
        let mut needed = 0;
        for req in reqs {
            let (_, record, run) = self.running(req)?;
            let end = record.committed + run.unverified.iter().sum::<usize>() + n;
            if run.prepared > 0 || run.mid_prefill {
                return refuse("OP-1", format!("{req} has a prefill or a decode step that is not done"));
            }
            if run.unverified.len() > usize::from(n > 1) {
                return refuse("SPEC-1", format!("a speculative step of {req} is not verified yet"));
            }
            if record.committed >= run.promised {
                return refuse("OP-1", format!("{req} has no token to decode"));
            }
            if end > max {
                return refuse("LEN-1", format!("{req} would grow to {end}, past {max}"));
            }
            let row = record.row;
            needed += end.div_ceil(size).saturating_sub(self.tables[row].len());
        }
        self.check_room(needed, 0, 0)?;
        let mut pages = vec![];
        for req in reqs {
            let (_, record, run) = self.running(req)?;
            let end = record.committed + run.unverified.iter().sum::<usize>() + n;
            run.prepared = end;
            run.drafts = if n > 1 { n } else { 0 };
            record.allocated = record.allocated.max(end);
            if n == 1 {
                record.committed = end;
            }
            let row = record.row;
            pages.push((req.clone(), self.grow(row, end)));
        }
        Ok(self.given(&pages).into())
    }

    pub(super) fn launch(&mut self, number: i64, reqs: &[String]) -> Answer {
        if self.flights.iter().any(|flight| flight.number == number) {
            return refuse("OP-1", format!("launch {number} is in flight"));
        }
        check_batch(reqs)?;
        for req in reqs {
            if self.running(req)?.2.prepared == 0 {
                return refuse("OP-1", format!("{req} has nothing to launch"));
            }
        }
        let (size, tracking) = (self.page_size, self.tracking_states());
        let reads_rows = !self.policies.frees_read_rows;
        let mut flight = Flight { number, sampled: vec![], drafted: vec![], reads: HashMap::new() };
        for req in reqs {
            let (_, record, run) = self.running(req)?;
            let border = run.prepared / size * size;
            if tracking > 0 && border > run.launched {
                record.keep_state(border);
            }
            run.launched = std::mem::take(&mut run.prepared);
            record.state_len = run.launched;
            if reads_rows {
                flight.reads.insert(record.row, run.launched);
            }
            if run.mid_prefill {
                continue;
            }
            run.promised += 1;
            if run.drafts > 0 {
                run.unverified.push_back(std::mem::take(&mut run.drafts));
                flight.drafted.push(req.clone());
            } else {
                flight.sampled.push(req.clone());
            }
        }
        self.flights.push_back(flight);
        Ok(vec![])
    }

    pub(super) fn complete(&mut self, number: i64, tokens: &[(String, Json)]) -> Answer {
        match self.flights.front() {
            Some(flight) if flight.number == number => {
                let named = |req: &String| tokens.iter().any(|(name, _)| name == req);
                if tokens.len() != flight.sampled.len() || !flight.sampled.iter().all(named) {
                    return refuse("CHUNK-1", "a token too few or too many");
                }
            }
            _ if self.flights.iter().any(|flight| flight.number == number) => {
                return refuse("LAUNCH-1", format!("launch {number} is not the oldest in flight"))
            }
            _ => return refuse("OP-1", format!("launch {number} is not in flight")),
        }
        let flight = self.flights.pop_front().unwrap();
        for (req, token) in tokens {
            self.running(req)?.0.push(token.int());
        }
        for req in &flight.drafted {
            self.running(req)?.2.verifiable += 1;
        }
        let free: Vec<usize> = self.withheld.iter().copied().filter(|&row| !self.is_read(row)).collect();
        for row in free {
            self.withheld.remove(&row);
            self.free_rows.push(row);
        }
        Ok(vec![])
    }

    pub(super) fn verify(&mut self, req: &str, accepted: i64, kept: &[Json]) -> Answer {
        let (tokens, record, run) = self.running(req)?;
        if run.verifiable == 0 {
            return refuse("SPEC-1", format!("{req} has no completed speculative step"));
        }
        if run.prepared > 0 {
            return refuse("LAUNCH-1", format!("the next step of {req} is not launched yet"));
        }
        if accepted < 1 || accepted as usize > run.unverified[0] {
            return refuse("SPEC-1", format!("{accepted} accepted positions are not in 1..{}", run.unverified[0]));
        }
        let accepted = accepted as usize;
        if kept.is_empty() || kept.len() > accepted {
            return refuse("SPEC-1", format!("{} tokens for {accepted} accepted positions", kept.len()));
        }
        run.unverified.pop_front();
        run.verifiable -= 1;
        record.committed += accepted;
        kept.iter().for_each(|token| tokens.push(token.int()));
        let stopped = kept.len() < accepted;
        if stopped {
            run.unverified.clear();
            run.verifiable = 0;
        }
        run.promised = tokens.len() + run.unverified.len();
        run.launched = record.committed + run.unverified.iter().sum::<usize>();
        if stopped {
            self.forget(req);
        }
        Ok(vec![])
    }

    pub(super) fn is_read(&self, row: usize) -> bool {
        self.flights.iter().any(|flight| flight.reads.contains_key(&row))
    }

    /// Drop the results of launches in flight for a request.
    pub(super) fn forget(&mut self, req: &str) {
        for flight in &mut self.flights {
            flight.sampled.retain(|name| name != req);
            flight.drafted.retain(|name| name != req);
        }
    }
}

impl Record {
    /// A launch passes a page border: a slot that keeps no state yet keeps the one there, or that of the oldest border.
    fn keep_state(&mut self, border: usize) {
        let unused = self.states[1..].iter().copied().find(|slot| !self.kept.values().any(|kept| kept == slot));
        let slot = unused.unwrap_or_else(|| self.kept.pop_first().unwrap().1);
        self.kept.insert(border, slot);
    }
}
