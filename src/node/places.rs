//! The places of a node's links: which are free, which generation each is in, and which link of the
//! control plane has which.

use crate::control::LinkToken;
use crate::interface::LinkId;
use std::collections::HashMap;
use std::vec::Vec;

/// The places. Place 0 is that of the node's link to itself, which has no token.
#[derive(Debug)]
pub(super) struct LinkPlaces {
    by_token: HashMap<LinkToken, u32>,
    /// Places without a link, other than the first.
    free: Vec<u32>,
    /// Generation of the next link in each place.
    generations: Vec<u16>,
}

impl LinkPlaces {
    /// One place.
    pub fn new() -> Self {
        Self { by_token: HashMap::new(), free: Vec::new(), generations: std::vec![0] }
    }

    /// The place of a link that the control plane knows.
    pub fn of(&self, token: LinkToken) -> Option<u32> {
        self.by_token.get(&token).copied()
    }

    /// A free place, which stays free.
    pub fn free(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// One more place, which is free.
    pub fn add(&mut self) {
        self.free.push(self.generations.len() as u32);
        self.generations.push(0);
    }

    /// A link takes the first place, or the one that [`free`](Self::free) returned.
    pub fn take(&mut self, place: u32, token: Option<LinkToken>) -> LinkId {
        self.by_token.extend(token.map(|token| (token, place)));
        self.free.pop_if(|free| *free == place);
        LinkId { index: place, generation: self.generations[place as usize] }
    }

    /// The link in a place has ended.
    pub fn leave(&mut self, place: u32, token: Option<&LinkToken>) {
        token.map(|token| self.by_token.remove(token));
        if place != 0 {
            self.free.push(place);
        }
        let generation = &mut self.generations[place as usize];
        *generation = generation.wrapping_add(1);
    }
}
