package main

import (
	"cmp"
	"slices"
)

// A node is a cached page behind its prefix. The root is the empty prefix, and has no page.
type node struct {
	parent   *node
	children map[content]*node
	content  content
	page     int
	depth    int
	locks    int
	used     int
}

// A store keeps computed prefixes for other requests. A lock on a node covers all nodes on its way to the root.
type store struct {
	root  *node
	nodes map[int]*node // by page
	clock int
}

func newStore() store {
	return store{root: &node{children: map[content]*node{}}, nodes: map[int]*node{}}
}

// find returns the end of the longest cached prefix of pages.
func (s *store) find(pages []content) *node {
	end := s.root
	for _, page := range pages {
		next := end.children[page]
		if next == nil {
			break
		}
		end = next
	}
	return end
}

func (s *store) add(parent *node, page content, number int) *node {
	added := &node{parent: parent, children: map[content]*node{}, content: page, page: number, depth: parent.depth + 1}
	parent.children[page] = added
	s.nodes[number] = added
	return added
}

// touch marks the prefix that ends at n as used now.
func (s *store) touch(n *node) {
	s.clock++
	for ; n != nil; n = n.parent {
		n.used = s.clock
	}
}

func lock(n *node) {
	for ; n != nil; n = n.parent {
		n.locks++
	}
}

func unlock(n *node) {
	for ; n != nil; n = n.parent {
		n.locks--
	}
}

// table returns the pages of the prefix that ends at n.
func (n *node) table() []int {
	pages := make([]int, n.depth)
	for ; n.depth > 0; n = n.parent {
		pages[n.depth-1] = n.page
	}
	return pages
}

func (s *store) locked() int {
	count := 0
	for _, n := range s.nodes {
		if n.locks > 0 {
			count++
		}
	}
	return count
}

// evict drops up to count unlocked pages, those first that were not used for the longest time. A prefix is used
// whenever a longer one is, and locked whenever a longer one is, so among equals the deepest is a leaf.
func (s *store) evict(count int) []int {
	unlocked := []*node{}
	for _, n := range s.nodes {
		if n.locks == 0 {
			unlocked = append(unlocked, n)
		}
	}
	slices.SortFunc(unlocked, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(b.depth, a.depth))
	})
	evicted := []int{}
	for _, n := range unlocked[:min(count, len(unlocked))] {
		delete(n.parent.children, n.content)
		delete(s.nodes, n.page)
		evicted = append(evicted, n.page)
	}
	return evicted
}
