//! Sequences of tokens, cut into whole pages and a rest.

use crate::json::Json;

/// What one whole page holds: token ids, or a key that stands for tokens whose ids are not given.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Page {
    Ids(Vec<i64>),
    Key(String),
}

#[derive(Clone)]
pub struct Tokens {
    pub size: usize,
    pub pages: Vec<Page>,
    pub rest: Vec<i64>,
}

impl Tokens {
    pub fn new(size: usize) -> Self {
        Tokens { size, pages: vec![], rest: vec![] }
    }

    pub fn len(&self) -> usize {
        self.pages.len() * self.size + self.rest.len()
    }

    pub fn push(&mut self, token: i64) {
        self.rest.push(token);
        if self.rest.len() == self.size {
            self.pages.push(Page::Ids(std::mem::take(&mut self.rest)));
        }
    }

    /// A sequence as it is written; `None` if a page key stands within a page.
    pub fn read(size: usize, elements: &[Json]) -> Option<Self> {
        let mut tokens = Tokens::new(size);
        for element in elements {
            match element {
                Json::Text(key) if tokens.rest.is_empty() => tokens.pages.push(Page::Key(key.clone())),
                Json::Text(_) => return None,
                number => tokens.push(number.int()),
            }
        }
        Some(tokens)
    }

    pub fn begins_with(&self, history: &Tokens) -> bool {
        let whole = history.pages.len();
        if self.pages.len() < whole || self.pages[..whole] != history.pages[..] {
            return false;
        }
        let following = match self.pages.get(whole) {
            Some(Page::Ids(ids)) => &ids[..],
            Some(Page::Key(_)) => return history.rest.is_empty(),
            None => &self.rest[..],
        };
        following.starts_with(&history.rest)
    }
}
