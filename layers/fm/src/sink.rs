//! The sink of the packets behind a message's first: straight from the ring to a suspended handler's
//! buffer, if its message is the next to be read.

use crate::flow::{STREAMS, Word};
use hamlyn::{Deposit, Message, Receiver, Then};

/// The buffer of one suspended handler, while the node takes a turn.
#[derive(Clone, Copy)]
struct Post {
    to: *mut u8,
    bytes: usize,
    taken: usize,
}

const NONE: Post = Post { to: core::ptr::null_mut(), bytes: 0, taken: 0 };

/// The sink of one peer. Its posts stand only while [`crate::Endpoint`] takes a turn of the node.
pub struct Sink {
    posts: [Post; STREAMS],
}

// SAFETY: its pointers are used in turns of the node alone, by the thread that has posted them.
unsafe impl Send for Sink {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Sink {}

impl Sink {
    pub fn new() -> Self {
        Self { posts: [NONE; STREAMS] }
    }

    /// The next bytes of a message go to `to`.
    ///
    /// # Safety
    /// `bytes` can be written from `to` on, and nothing else uses them, until [`retract`](Self::retract).
    pub unsafe fn post(&mut self, stream: usize, to: *mut u8, bytes: usize) {
        self.posts[stream] = Post { to, bytes, taken: 0 };
    }

    /// The buffer is no longer used. Returns how many bytes have come to it.
    pub fn retract(&mut self, stream: usize) -> usize {
        core::mem::replace(&mut self.posts[stream], NONE).taken
    }
}

impl Receiver for Sink {
    fn place(&mut self, deposit: &Deposit<'_>) -> Option<&mut [u8]> {
        let word = Word::from_bits(deposit.word);
        // A word that says another length than the packet has: the window takes it.
        if word.first || word.length != deposit.length as usize {
            return None;
        }
        let post = self.posts.get_mut(word.stream)?;
        let takes = word.length.min(post.bytes - post.taken);
        if word.last {
            // What follows is of another message with this number.
            post.bytes = post.taken + takes;
        }
        if takes == 0 {
            return None;
        }
        // SAFETY: inside of the buffer, by `post`'s contract.
        let place = unsafe { core::slice::from_raw_parts_mut(post.to.add(post.taken), takes) };
        post.taken += takes;
        Some(place)
    }
}

/// What other nodes say first, by the link that it came over. Of each link it keeps the first.
#[derive(Default)]
pub struct Hellos(pub Vec<(hamlyn::LinkId, Vec<u8>)>);

impl Receiver for Hellos {
    fn process_arrival(&mut self, message: Message<'_>) -> Then {
        if self.0.len() < self.0.capacity() && self.0.iter().all(|(link, _)| *link != message.link)
        {
            let bytes = message.last_bytes().to_vec();
            self.0.push((message.link, bytes));
        }
        Then::Consume
    }
}
