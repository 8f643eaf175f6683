//! Messages that wait in work queues: the links that have any, the turns of these links, and the
//! packets that go before a message that does not wait.
//!
//! ```text
//!   posted          a message waits for a link
//!   transmit_all    each long turn: every link that has some, each a turn's packets
//!   send_ahead      before a message that does not wait: one packet of its own link, or a whole turn
//!                   if it comes behind them; and one packet of another link, in turn
//!   way             how a message that does not wait shares its link with those that do
//! ```
//! So a message costs its sender a bounded number of other messages' packets, a full link delays
//! only its own messages, and of messages of equal priority to one link neither kind waits for all
//! of the other. The interface decides which terminus has the next packet of a link, priorities
//! first.
//!
//! Never: a walk over links for which nothing waits; a link in the list twice, or with nothing to
//! send.

use alloc::vec::Vec;

/// A link's entry.
#[derive(Clone, Copy, Debug, Default)]
struct LinkEntry {
    /// Messages that wait for it. It is in the list while there are any.
    waiting: usize,
    position: u32,
}

/// The messages that wait, by link.
#[derive(Debug, Default)]
pub(crate) struct Queued {
    /// Links for which messages wait. The links before `next` have had their turn.
    links: Vec<u32>,
    next: usize,
    places: Vec<LinkEntry>,
    total: usize,
}

/// The way of a message that does not wait over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendWay {
    /// Nothing waits for the link: the whole message leaves at once.
    Alone,
    /// Packet by packet, alternating with waiting messages.
    Between,
    /// Behind waiting messages of its own terminus, or of a higher priority.
    Behind,
}

impl Queued {
    /// Messages that wait.
    #[inline]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Messages that wait for a link.
    #[inline]
    pub fn of(&self, link: u32) -> usize {
        self.places.get(link as usize).map_or(0, |place| place.waiting)
    }

    /// The links for which messages wait.
    pub fn links(&self) -> &[u32] {
        &self.links
    }

    /// A message has been put into a work queue for a link.
    pub fn posted(&mut self, link: u32) {
        if self.places.len() <= link as usize {
            self.places.resize(link as usize + 1, LinkEntry::default());
        }
        let place = &mut self.places[link as usize];
        if place.waiting == 0 {
            place.position = self.links.len() as u32;
            self.links.push(link);
        }
        place.waiting += 1;
        self.total += 1;
    }

    /// `messages` messages for a link have left.
    pub fn left(&mut self, link: u32, messages: usize) {
        let Some(place) = self.places.get_mut(link as usize) else { return };
        let messages = messages.min(place.waiting);
        place.waiting -= messages;
        self.total -= messages;
        if place.waiting == 0 && messages > 0 {
            let position = place.position as usize;
            self.unlist(position);
        }
    }

    /// Nothing will leave over a link any more.
    pub fn drop_link(&mut self, link: u32) {
        self.left(link, self.of(link));
    }

    fn unlist(&mut self, mut position: usize) {
        if position < self.next {
            // The last link that had its turn takes its place: the last of all may not have had its
            // own yet.
            self.next -= 1;
            self.exchange(position, self.next);
            position = self.next;
        }
        self.exchange(position, self.links.len() - 1);
        self.links.pop();
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.links.swap(a, b);
        for position in [a, b] {
            let link = self.links[position];
            self.places[link as usize].position = position as u32;
        }
    }

    /// The next link in turn, except `but`, which has had one.
    fn next_in_turn(&mut self, but: u32) -> Option<u32> {
        for _ in 0..2 {
            if self.next >= self.links.len() {
                self.next = 0;
            }
            let link = *self.links.get(self.next)?;
            self.next += 1;
            if link != but {
                return Some(link);
            }
        }
        None
    }

    /// The way of a message that does not wait; `is_behind`: whether messages of its own terminus,
    /// or of one of higher priority, wait for the link.
    #[inline]
    pub fn way(&self, link: u32, is_behind: impl FnOnce() -> bool) -> SendWay {
        match self.of(link) {
            0 => SendWay::Alone,
            _ if is_behind() => SendWay::Behind,
            _ => SendWay::Between,
        }
    }
}

/// A node, or another owner of messages that wait.
pub(crate) trait SendsQueued {
    fn queued(&self) -> &Queued;
    fn queued_mut(&mut self) -> &mut Queued;
    /// Most packets given to a link in a turn.
    fn packets_per_turn(&self) -> usize;
    /// Gives a link at most `packets` packets of the messages that wait for it, as far as it has
    /// room, and reports by [`left`](Queued::left) or [`drop_link`](Queued::drop_link) those that
    /// wait no more.
    fn transmit_queued(&mut self, link: u32, packets: usize);

    /// A turn's packets to every link for which messages wait.
    fn transmit_all_queued(&mut self) {
        let packets = self.packets_per_turn();
        let mut i = 0;
        while let Some(&link) = self.queued().links.get(i) {
            self.transmit_queued(link, packets);
            // If nothing waits for it any more, another has its place in the list.
            i += usize::from(self.queued().links.get(i) == Some(&link));
        }
    }

    /// Sends the packets that go before a message to `link` that does not wait and would go this
    /// `way`.
    fn send_ahead(&mut self, link: u32, way: SendWay) {
        match way {
            SendWay::Alone => {}
            SendWay::Between => self.transmit_queued(link, 1),
            SendWay::Behind => self.transmit_queued(link, self.packets_per_turn()),
        }
        if let Some(other) = self.queued_mut().next_in_turn(link) {
            self.transmit_queued(other, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::sim::Rng;
    use alloc::{vec, vec::Vec};

    const PER_TURN: usize = 16;

    /// Messages of so many packets each that wait for links, and links that have so much room.
    struct Node {
        queued: Queued,
        /// Of each link: packets left of each message.
        messages: Vec<Vec<usize>>,
        room: Vec<usize>,
        /// Packets that left, of each link.
        sent: Vec<usize>,
        in_call: usize,
    }

    impl SendsQueued for Node {
        fn queued(&self) -> &Queued {
            &self.queued
        }
        fn queued_mut(&mut self) -> &mut Queued {
            &mut self.queued
        }
        fn packets_per_turn(&self) -> usize {
            PER_TURN
        }
        fn transmit_queued(&mut self, link: u32, packets: usize) {
            let at = link as usize;
            let packets = packets.min(self.room[at]);
            let mut messages = 0;
            for _ in 0..packets {
                let Some(first) = self.messages[at].first_mut() else { break };
                *first -= 1;
                if *first == 0 {
                    self.messages[at].remove(0);
                    messages += 1;
                }
                self.room[at] -= 1;
                self.sent[at] += 1;
                self.in_call += 1;
            }
            self.queued.left(link, messages);
        }
    }

    impl Node {
        fn new(links: usize) -> Self {
            let queued = Queued::default();
            let room = vec![usize::MAX; links];
            Self {
                queued,
                messages: vec![Vec::new(); links],
                room,
                sent: vec![0; links],
                in_call: 0,
            }
        }

        fn post(&mut self, link: usize, packets: usize) {
            self.messages[link].push(packets);
            self.queued.posted(link as u32);
        }

        /// The number of packets that left ahead of a message to `link`.
        fn ahead(&mut self, link: usize, way: SendWay) -> usize {
            self.in_call = 0;
            self.send_ahead(link as u32, way);
            self.in_call
        }

        /// The counts match the messages.
        fn check(&self) {
            let queued = &self.queued;
            let waiting: Vec<usize> = self.messages.iter().map(Vec::len).collect();
            assert_eq!(queued.total(), waiting.iter().sum::<usize>());
            for (link, waiting) in waiting.iter().enumerate() {
                assert_eq!(queued.of(link as u32), *waiting);
                let listed = queued.links.iter().filter(|listed| **listed == link as u32).count();
                assert_eq!(listed, usize::from(*waiting > 0), "link {link}");
            }
            for (position, link) in queued.links.iter().enumerate() {
                assert_eq!(queued.places[*link as usize].position as usize, position);
            }
            assert!(queued.next <= queued.links.len());
        }
    }

    #[test]
    fn a_link_is_listed_while_messages_wait_for_it_in_whatever_order_they_come_and_go() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut node = Node::new(8);
            for _ in 0..200 {
                let link = rng.below(8) as usize;
                match rng.below(6) {
                    0 | 1 => node.post(link, 1 + rng.below(4) as usize),
                    2 => node.transmit_all_queued(),
                    3 => node.room[link] = rng.below(3) as usize,
                    4 => {
                        let behind = rng.below(2) == 1;
                        let way = node.queued.way(link as u32, || behind);
                        assert_eq!(way == SendWay::Alone, node.messages[link].is_empty());
                        node.ahead(link, way);
                    }
                    _ => {
                        node.messages[link].clear();
                        node.queued.drop_link(link as u32);
                    }
                }
                node.check();
            }
        }
    }

    #[test]
    fn a_link_that_is_full_keeps_no_other_waiting() {
        let mut node = Node::new(3);
        (0..3).for_each(|link| node.post(link, 1));
        node.room[1] = 0;
        node.transmit_all_queued();
        assert_eq!((node.sent, node.queued.total()), (vec![1, 0, 1], 1));
    }

    #[test]
    fn a_turn_gives_every_link_a_turns_packets_and_no_more() {
        let mut node = Node::new(5);
        (0..5).for_each(|link| (0..10).for_each(|_| node.post(link, 10)));
        for turn in 1..=100_usize.div_ceil(PER_TURN) {
            node.transmit_all_queued();
            assert_eq!(node.sent, vec![(turn * PER_TURN).min(100); 5], "turn {turn}");
        }
        assert_eq!(node.queued.total(), 0);
    }

    #[test]
    fn before_a_message_leave_one_packet_of_its_link_and_one_of_another() {
        let mut node = Node::new(9);
        (0..9).for_each(|link| node.post(link, 1000));
        for _ in 0..50 {
            assert_eq!(node.ahead(0, SendWay::Between), 2);
        }
        // A turn's packets if it has to come behind them; none of its own link if none waits.
        assert_eq!(node.ahead(0, SendWay::Behind), PER_TURN + 1);
        node.messages[0].clear();
        node.queued.drop_link(0);
        assert_eq!(node.ahead(0, SendWay::Alone), 1);
    }

    #[test]
    fn messages_to_one_link_let_every_other_link_have_its_turn_as_links_come_and_go() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut node = Node::new(20);
            // The even ones always have something, the odd ones now and then.
            (0..20).step_by(2).for_each(|link| node.post(link, usize::MAX));
            for message in 1..=400 {
                let way = node.queued.way(0, || false);
                let ahead = node.ahead(0, way);
                assert!(ahead <= 2, "{ahead} packets before one message");
                let odd = rng.below(10) as usize * 2 + 1;
                match rng.below(3) {
                    0 => node.post(odd, 1),
                    1 => {
                        node.messages[odd].clear();
                        node.queued.drop_link(odd as u32);
                    }
                    _ => {}
                }
                // One other link a message, of at most 20.
                for link in (2..20).step_by(2) {
                    assert!(node.sent[link] >= message / 40, "seed {seed}, {message}: link {link}");
                }
            }
            node.check();
        }
    }
}
