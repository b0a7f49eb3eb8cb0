//! The free pages with their window sides, and the free state slots.

use crate::json::Json;
use std::collections::HashMap;

/// The free ones of the numbers `1..=size` of one kind of memory; a size of 0: there is no such pool.
pub struct Pool {
    size: usize,
    pub free: Vec<usize>,
    /// What the operation under way has freed.
    pub freed: Vec<usize>,
}

impl Pool {
    pub fn new(size: usize) -> Self {
        Pool { size, free: (1..=size).rev().collect(), freed: vec![] }
    }

    pub fn exists(&self) -> bool {
        self.size > 0
    }

    pub fn short_of(&self, needed: usize) -> usize {
        needed.saturating_sub(self.free.len())
    }

    pub fn take(&mut self) -> usize {
        self.free.pop().unwrap()
    }

    pub fn give_back(&mut self, number: usize) {
        self.free.push(number);
        self.freed.push(number);
    }

    /// Part of an answer, or null where the configuration has no such pool.
    pub fn optional<T: Into<Json>>(&self, part: T) -> Json {
        if self.exists() { part.into() } else { Json::Null }
    }

    pub fn optional_freed(&self) -> Json {
        self.optional(self.freed.clone())
    }
}

/// Pages, and behind each one a window page where there is a sliding window: its window side.
pub struct Pages {
    pub full: Pool,
    pub window: Pool,
    /// Page -> its window side; a page that has lost its own is not here.
    pub sides: HashMap<usize, usize>,
}

impl Pages {
    pub fn new(pages: usize, window_pages: usize) -> Self {
        Pages { full: Pool::new(pages), window: Pool::new(window_pages), sides: HashMap::new() }
    }

    pub fn take(&mut self) -> usize {
        let page = self.full.take();
        if self.window.exists() {
            self.sides.insert(page, self.window.take());
        }
        page
    }

    pub fn free(&mut self, page: usize) {
        self.free_side(page);
        self.full.give_back(page);
    }

    pub fn free_side(&mut self, page: usize) {
        if let Some(side) = self.sides.remove(&page) {
            self.window.give_back(side);
        }
    }

    /// The store keeps `page` and frees a duplicate: a side that it lacks and the duplicate has moves over.
    pub fn keep_one(&mut self, page: usize, duplicate: usize) {
        if !self.sides.contains_key(&page) {
            if let Some(side) = self.sides.remove(&duplicate) {
                self.sides.insert(page, side);
            }
        }
        self.free(duplicate);
    }

    /// The window sides of these pages.
    pub fn sides_of(&self, pages: &[usize]) -> Vec<usize> {
        pages.iter().filter_map(|page| self.sides.get(page).copied()).collect()
    }
}
