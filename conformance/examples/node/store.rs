//! The prefix store: a tree with a node for each cached page.

use crate::pools::Pages;
use crate::tokens::Page;
use std::collections::HashMap;

/// One cached page, behind its parent; node 0 is the empty prefix, which is no entry.
///
/// A lock on a prefix covers all of its pages, the window sides of its last ones, and the state at its very end. Each
/// is counted by itself.
pub struct Cached {
    parent: usize,
    content: Page,
    pub page: usize,
    /// The slot of the recurrent state after this page.
    pub state: Option<usize>,
    pub locks: usize,
    pub window_locks: usize,
    pub state_locks: usize,
    children: usize,
    used: u64,
}

pub struct Store {
    pub nodes: HashMap<usize, Cached>,
    children: HashMap<(usize, Page), usize>,
    /// The pages that a window reaches back; 0 without a sliding window.
    reach: usize,
    /// Whether a prefix is of use only where a recurrent state is cached.
    has_states: bool,
    clock: u64,
    next: usize,
}

impl Store {
    pub fn new(reach: usize, has_states: bool) -> Self {
        Store { nodes: HashMap::new(), children: HashMap::new(), reach, has_states, clock: 0, next: 1 }
    }

    pub fn child(&self, parent: usize, content: &Page) -> Option<usize> {
        self.children.get(&(parent, content.clone())).copied()
    }

    /// The nodes of the longest prefix of `contents` from which a request can go on.
    pub fn find(&mut self, contents: &[Page], pages: &Pages) -> Vec<usize> {
        self.clock += 1;
        let (mut path, mut usable, mut live) = (vec![], 0, 0);
        for content in contents {
            let Some(node) = self.child(path.last().copied().unwrap_or(0), content) else { break };
            let cached = self.nodes.get_mut(&node).unwrap();
            cached.used = self.clock;
            path.push(node);
            live = if pages.sides.contains_key(&cached.page) { live + 1 } else { 0 };
            if live >= self.reach.min(path.len()) && (cached.state.is_some() || !self.has_states) {
                usable = path.len();
            }
        }
        path.truncate(usable);
        path
    }

    pub fn add(&mut self, parent: usize, content: Page, page: usize) -> usize {
        let node = self.next;
        self.next += 1;
        self.children.insert((parent, content.clone()), node);
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children += 1;
        }
        let (state, used) = (None, self.clock);
        let (locks, window_locks, state_locks, children) = (0, 0, 0, 0);
        let cached = Cached { parent, content, page, state, locks, window_locks, state_locks, children, used };
        self.nodes.insert(node, cached);
        node
    }

    /// Lock the prefix that ends at `node`.
    pub fn lock(&mut self, node: usize) {
        self.count(node, |locks| *locks += 1);
    }

    /// Take one lock back.
    pub fn unlock(&mut self, node: usize) {
        self.count(node, |locks| *locks -= 1);
    }

    fn count(&mut self, end: usize, change: fn(&mut usize)) {
        let (mut node, mut from_end) = (end, 0);
        while let Some(cached) = self.nodes.get_mut(&node) {
            change(&mut cached.locks);
            if from_end < self.reach {
                change(&mut cached.window_locks);
            }
            if from_end == 0 {
                change(&mut cached.state_locks);
            }
            (node, from_end) = (cached.parent, from_end + 1);
        }
    }

    /// The node that was not used for the longest time, of those that are `free_to_go`.
    fn oldest(&self, free_to_go: impl Fn(&Cached) -> bool) -> Option<usize> {
        let nodes = self.nodes.iter().filter(|(_, cached)| free_to_go(cached));
        nodes.min_by_key(|(node, cached)| (cached.used, **node)).map(|(node, _)| *node)
    }

    /// Drop an unlocked leaf.
    pub fn evict(&mut self) -> Option<Cached> {
        let node = self.oldest(|cached| cached.locks == 0 && cached.children == 0)?;
        let cached = self.nodes.remove(&node).unwrap();
        self.children.remove(&(cached.parent, cached.content.clone()));
        if let Some(parent) = self.nodes.get_mut(&cached.parent) {
            parent.children -= 1;
        }
        Some(cached)
    }

    /// A page whose window side may go: it stays as a tombstone.
    pub fn evict_side(&self, pages: &Pages) -> Option<usize> {
        let node = self.oldest(|cached| cached.window_locks == 0 && pages.sides.contains_key(&cached.page))?;
        Some(self.nodes[&node].page)
    }

    /// Drop a state that no lock covers.
    pub fn evict_state(&mut self) -> Option<usize> {
        let node = self.oldest(|cached| cached.state_locks == 0 && cached.state.is_some())?;
        self.nodes.get_mut(&node).unwrap().state.take()
    }
}
