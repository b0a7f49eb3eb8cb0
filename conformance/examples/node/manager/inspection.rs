//! Operations that change nothing.

use super::*;
use crate::store::Cached;

type Holders<'a> = Vec<(&'a String, &'a Record)>;

impl Manager {
    /// The requests and the sessions that have a record. A record that is lent is its request's.
    fn holders(&self) -> (Holders<'_>, Holders<'_>) {
        let requests = self.requests.iter().filter_map(|(name, one)| Some((name, one.record.as_ref()?)));
        let sessions = self.sessions.iter().filter_map(|(name, one)| Some((name, one.record.as_ref()?)));
        (requests.collect(), sessions.collect())
    }

    pub(super) fn report(&mut self, idle: bool) -> Answer {
        let (mut requests, mut sessions) = self.holders();
        if idle && !requests.is_empty() {
            return refuse("OP-1", "a request holds memory");
        }
        if self.policies.turns_are_sessions {
            let is_turn = |(name, _): &(&String, &Record)| self.requests[*name].session.is_some();
            sessions.extend(requests.iter().copied().filter(is_turn));
            requests.retain(|holder| !is_turn(holder));
        }
        let (pages, window, states) = (&self.pages.full, &self.pages.window, &self.states);
        let tokens = |pages: usize| Json::from(pages * self.page_size);
        // A page that is held in part is held whole.
        let end = |record: &Record| record.allocated.div_ceil(self.page_size) * self.page_size;
        let held = |holders: &Holders| sum(holders, |record| end(record) - record.protected);
        let sides = |holders: &Holders| sum(holders, |record| end(record) - record.protected.max(record.cursor));
        let slots = |holders: &Holders| sum(holders, |record| record.states.len());
        let early = self.requests.values().filter(|request| request.state.is_some()).count();
        let count = |which: &dyn Fn(&Cached) -> bool| self.store.nodes.values().filter(|one| which(one)).count();
        let has_side = |one: &Cached| self.pages.sides.contains_key(&one.page);
        Ok(vec![
            ("available", tokens(pages.free.len())),
            ("evictable", tokens(count(&|one| one.locks == 0))),
            ("protected", tokens(count(&|one| one.locks > 0))),
            ("session_held", held(&sessions).into()),
            ("uncached", held(&requests).into()),
            ("rows_available", self.free_rows.len().into()),
            ("rows_requests", requests.len().into()),
            ("rows_sessions", sessions.len().into()),
            ("rows_withheld", self.withheld.len().into()),
            ("window_available", window.optional(tokens(window.free.len()))),
            ("window_evictable", window.optional(tokens(count(&|one| has_side(one) && one.window_locks == 0)))),
            ("window_protected", window.optional(tokens(count(&|one| has_side(one) && one.window_locks > 0)))),
            ("window_session_held", window.optional(sides(&sessions))),
            ("window_uncached", window.optional(sides(&requests))),
            ("states_available", states.optional(states.free.len())),
            ("states_evictable", states.optional(count(&|one| one.state.is_some() && one.state_locks == 0))),
            ("states_protected", states.optional(count(&|one| one.state.is_some() && one.state_locks > 0))),
            ("states_sessions", states.optional(slots(&sessions))),
            ("states_requests", states.optional(slots(&requests) + early)),
        ])
    }

    pub(super) fn snapshot(&mut self) -> Answer {
        let (requests, sessions) = self.holders();
        let rows = requests.iter().chain(&sessions).map(|(_, record)| (record.row.to_string(), self.slots(record)));
        let views = |holders: &Holders| {
            Json::Object(holders.iter().map(|(name, record)| (name.to_string(), self.view(record))).collect())
        };
        let (window, states, nodes) = (&self.pages.window, &self.states, self.store.nodes.values());
        let numbers = |numbers: &Vec<usize>| Json::from(numbers.clone());
        let locks = nodes.clone().filter(|one| one.locks > 0).map(|one| (one.page, one.locks));
        let windowed = nodes.clone().filter_map(|one| Some((*self.pages.sides.get(&one.page)?, one.window_locks)));
        let stateful = nodes.clone().filter_map(|one| Some((one.state?, one.state_locks)));
        Ok(vec![
            ("rows", Json::Object(rows.collect())),
            ("free_rows", numbers(&self.free_rows)),
            ("withheld_rows", Json::from(self.withheld.iter().copied().collect::<Vec<_>>())),
            ("free_pages", numbers(&self.pages.full.free)),
            ("store_pages", Json::from(nodes.clone().map(|one| one.page).collect::<Vec<_>>())),
            ("requests", views(&requests)),
            ("sessions", views(&sessions)),
            ("locks", Json::map(locks)),
            ("window_sides", window.optional(Json::map(self.pages.sides.iter().map(|(page, side)| (*page, *side))))),
            ("window_locks", window.optional(Json::map(windowed.filter(|(_, locks)| *locks > 0)))),
            ("free_states", states.optional(states.free.clone())),
            ("store_states", states.optional(nodes.clone().filter_map(|one| one.state).collect::<Vec<_>>())),
            ("state_locks", states.optional(Json::map(stateful.filter(|(_, locks)| *locks > 0)))),
        ])
    }

    /// The slot of each allocated position, a run for each page.
    fn slots(&self, record: &Record) -> Json {
        let size = self.page_size;
        let pages = self.tables[record.row].iter().enumerate();
        let runs = pages.filter(|(index, _)| index * size < record.allocated).map(|(index, page)| {
            Json::List(vec![(page * size).into(), size.min(record.allocated - index * size).into()])
        });
        Json::List(runs.collect())
    }

    fn view(&self, record: &Record) -> Json {
        let (window, states) = (&self.pages.window, &self.states);
        let parts = [
            ("row", record.row.into()),
            ("protected_len", record.protected.into()),
            ("committed_len", record.committed.into()),
            ("allocated_len", record.allocated.into()),
            ("swa_evicted_len", window.optional(record.protected.max(record.cursor))),
            ("states", states.optional(record.states.clone())),
            ("computing", states.optional(record.states.first().copied())),
            ("tracking", states.optional(Json::map(record.kept.iter().map(|(border, slot)| (*border, *slot))))),
        ];
        Json::Object(parts.into_iter().map(|(name, part)| (name.into(), part)).collect())
    }
}

fn sum(holders: &Holders, of: impl Fn(&Record) -> usize) -> usize {
    holders.iter().map(|(_, record)| of(record)).sum()
}
