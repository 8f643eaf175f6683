//! Routes: the link that leads to a node.
//!
//! ```text
//!   a link to a proved node begins   add(node, link)  -->  Route, which the link keeps
//!   a message is to be sent          again(node); if the last find was of another node: find(node)
//!   nothing more is sent over it     remove(Route)
//! ```
//! The first of several links to a node is its route; when that ends, the link that came next after
//! it is. Finding, adding and removing cost a search in a tree, for any number of links to other
//! nodes or to the same.
//!
//! Links are kept in one place, in the order in which they are used; there is no other table that
//! could differ from it. A [`Route`] is made by `add` alone, cannot be copied, and is consumed by
//! `remove`: so no link leads to a node twice, or after it has ended.
//!
//! Never: a walk over links.

use alloc::collections::BTreeMap;

/// The links that lead to nodes. `N` names a node.
#[derive(Debug)]
pub(crate) struct Routes<N> {
    /// By node, and to each in the order in which they came.
    links: BTreeMap<(N, u64), u32>,
    /// Links that have come.
    came: u64,
    /// The last result: most messages have the destination of the one before.
    last: Option<(N, u32)>,
}

/// Proof that a link leads to a node.
#[derive(Debug)]
pub(crate) struct Route<N>(N, u64);

impl<N: Copy + Ord> Routes<N> {
    pub fn new() -> Self {
        Self { links: BTreeMap::new(), came: 0, last: None }
    }

    /// A link leads to a node: if others do already, it is used when they have ended.
    pub fn add(&mut self, node: N, link: u32) -> Route<N> {
        self.came += 1;
        self.links.insert((node, self.came), link);
        Route(node, self.came)
    }

    /// A link no longer leads to its node.
    pub fn remove(&mut self, Route(node, came): Route<N>) {
        self.links.remove(&(node, came));
        self.last = None;
    }

    /// The link that was found last, if it leads to this node. (By reference: it is read in place,
    /// and costs the path of a message no register.)
    #[inline]
    pub fn again(&self, node: &N) -> Option<u32> {
        match self.last {
            Some((last, link)) if last == *node => Some(link),
            _ => None,
        }
    }

    /// The link that leads to a node.
    pub fn find(&mut self, node: N) -> Option<u32> {
        let (_, &link) = self.links.range((node, 0)..=(node, u64::MAX)).next()?;
        self.last = Some((node, link));
        Some(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::sim::Rng;
    use alloc::vec::Vec;
    use core::cell::Cell;

    /// The naive model: all links with their nodes, in the order in which they came.
    type Model = Vec<(u64, u32, Route<u64>)>;

    fn first(model: &Model, node: u64) -> Option<u32> {
        model.iter().find(|row| row.0 == node).map(|row| row.1)
    }

    #[test]
    fn the_first_link_that_is_left_to_a_node_is_its_route_whatever_comes_and_ends() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (mut routes, mut model) = (Routes::new(), Model::new());
            let mut free: Vec<u32> = (0..20).rev().collect();
            for _ in 0..400 {
                let node = rng.below(5);
                match rng.below(4) {
                    // The next link uses a place again, also for another node.
                    0 => {
                        if let Some(link) = free.pop() {
                            model.push((node, link, routes.add(node, link)));
                        }
                    }
                    1 if !model.is_empty() => {
                        let (_, link, route) = model.remove(rng.below(model.len() as u64) as usize);
                        routes.remove(route);
                        free.push(link);
                    }
                    2 => assert_eq!(routes.find(node), first(&model, node), "seed {seed}"),
                    _ => {}
                }
                // It need not remember a result, but a remembered result is right.
                for node in 0..5 {
                    if let Some(link) = routes.again(&node) {
                        assert_eq!(Some(link), first(&model, node), "seed {seed}");
                    }
                }
            }
            for node in 0..5 {
                assert_eq!(routes.find(node), first(&model, node), "seed {seed}");
            }
        }
    }

    #[test]
    fn what_was_found_is_found_again_without_a_search_until_a_link_ends() {
        let mut routes = Routes::new();
        assert_eq!((routes.again(&1), routes.find(1)), (None, None));
        let first = routes.add(1, 10);
        assert_eq!(routes.find(1), Some(10));
        let _second = routes.add(1, 11);
        assert_eq!((routes.again(&1), routes.again(&2)), (Some(10), None));
        routes.remove(first);
        assert_eq!(
            (routes.again(&1), routes.find(1), routes.again(&1)),
            (None, Some(11), Some(11))
        );
    }

    #[test]
    fn whoever_connects_again_before_the_old_link_has_ended_is_reached_over_the_new_one_after() {
        let mut routes = Routes::new();
        let old = routes.add(1, 3);
        let new = routes.add(1, 4);
        assert_eq!(routes.find(1), Some(3));
        routes.remove(old);
        assert_eq!(routes.find(1), Some(4));
        // The place of the old one, and a third link: the second is the older one now.
        let third = routes.add(1, 3);
        assert_eq!(routes.find(1), Some(4));
        routes.remove(new);
        assert_eq!(routes.find(1), Some(3));
        routes.remove(third);
        assert_eq!(routes.find(1), None);
    }

    /// A name that counts how often names are compared.
    #[derive(Clone, Copy)]
    struct Counted<'a>(u64, &'a Cell<u64>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted<'_> {}

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> core::cmp::Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    // A peer with many links, to one node or to many, makes no other wait for a walk over them when
    // they end.
    #[test]
    fn a_link_that_comes_or_ends_costs_a_search_however_many_there_are() {
        const LINKS: u64 = 10_000;
        for nodes in [1, LINKS] {
            let compared = Cell::new(0);
            let (mut routes, mut rng) = (Routes::new(), Rng::new(nodes));
            let name = |number| Counted(number, &compared);
            let mut kept: Vec<_> =
                (0..LINKS).map(|link| routes.add(name(link % nodes), link as u32)).collect();
            let mut most = 0;
            let mut note = || most = most.max(compared.replace(0));
            compared.set(0);
            while !kept.is_empty() {
                routes.remove(kept.swap_remove(rng.below(kept.len() as u64) as usize));
                note();
                routes.find(name(rng.below(nodes)));
                note();
                let route = routes.add(name(rng.below(nodes)), 0);
                note();
                routes.remove(route);
                note();
            }
            // Of each of at most six nodes of the tree, eleven keys; and both ends of a range.
            assert!(most > 0 && most <= 2 * 6 * 11, "{most} comparisons, {nodes} nodes");
        }
    }
}
