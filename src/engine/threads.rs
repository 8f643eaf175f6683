//! Threads of one node: of those that wait, one sleeps on its links for all; each thread notifies
//! others of its progress.
//!
//! ```text
//!   each thread    lock --- takes turns --- found: tells the others, unlocks
//!                                      \
//!                                       --- nothing: falls asleep, unlocks --- woken --- lock ---
//!   falls asleep   no thread leads:              leads, on packets and room of all links
//!                  a thread leads:               follows, on a word of the node's own
//!                  the same, and it waits for    sleeps beside the leader, on the same links
//!                  room on a link
//! ```
//! A thread that takes turns deposits packets for all, and may take the signal for which the leader
//! sleeps. So a thread that releases the lock reports its progress since it took the lock: to the
//! followers, who look for their events, and to the leader. If no thread leads any more, followers
//! are notified in any case, and one of them leads next.
//!
//! Never: a thread follows while none leads; a thread goes to sleep without reporting its progress.

/// The progress of events that others may wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventProgress {
    /// Counts packets that were deposited, and links that came or went.
    pub arrived: u64,
    /// Messages that wait for room.
    pub queued: usize,
}

impl EventProgress {
    /// Whether more has come than before, or more has to leave.
    #[inline]
    fn is_beyond(self, before: Self) -> bool {
        self.arrived != before.arrived || self.queued > before.queued
    }
}

/// The place where a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleepPlace {
    /// On the node's links, for all.
    Leads,
    /// Until the leader, or a former one, wakes it.
    Follows,
    /// On the node's links beside the leader: it waits for room, of which a follower gets no
    /// notice.
    Beside,
}

/// A thread that sleeps, until it is [woken](Threads::wake).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "whoever sleeps is counted until it wakes"]
pub(crate) struct Asleep(SleepPlace);

impl Asleep {
    pub fn place(&self) -> SleepPlace {
        self.0
    }
}

/// The threads to wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadsToWake {
    pub followers: bool,
    pub leader: bool,
}

/// The threads of a node that sleep.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// Twice the number of followers, plus one if a thread leads: in one word, which is read for
    /// each message.
    asleep: usize,
}

impl Threads {
    /// 0: no thread leads or follows, so there is none to notify.
    #[inline]
    pub fn others(&self) -> usize {
        self.asleep
    }

    #[inline]
    pub fn is_alone(&self) -> bool {
        self.asleep == 0
    }

    /// Whether a thread sleeps on the node's links for all.
    #[inline]
    pub fn has_leader(&self) -> bool {
        self.asleep & 1 == 1
    }

    #[inline]
    fn has_followers(&self) -> bool {
        self.asleep > 1
    }

    /// The place of a thread that would fall asleep now; `for_room`: it waits for room on a link.
    pub fn place(&self, for_room: bool) -> SleepPlace {
        match (self.has_leader(), for_room) {
            (false, _) => SleepPlace::Leads,
            (true, false) => SleepPlace::Follows,
            (true, true) => SleepPlace::Beside,
        }
    }

    /// A thread falls asleep at its [place](Self::place). Returns the threads that it must wake
    /// first, by its progress from `before` to `moved`. `own_waits`: a packet of the node to itself
    /// waits for a turn.
    pub fn fall_asleep(
        &mut self,
        for_room: bool,
        before: EventProgress,
        moved: EventProgress,
        own_waits: bool,
    ) -> (Asleep, ThreadsToWake) {
        let place = self.place(for_room);
        if place == SleepPlace::Leads {
            self.asleep += 1;
        }
        let told = self.told(before, moved, own_waits);
        match place {
            // It has looked for itself.
            SleepPlace::Leads => (Asleep(place), ThreadsToWake { leader: false, ..told }),
            SleepPlace::Beside => (Asleep(place), told),
            SleepPlace::Follows => {
                self.asleep += 2;
                (Asleep(place), told)
            }
        }
    }

    /// A thread that slept has the lock again.
    pub fn wake(&mut self, asleep: Asleep) {
        self.asleep -= match asleep.0 {
            SleepPlace::Leads => 1,
            SleepPlace::Follows => 2,
            SleepPlace::Beside => 0,
        };
    }

    /// The threads that must be woken by a thread that releases the lock.
    pub fn told(
        &self,
        before: EventProgress,
        moved: EventProgress,
        own_waits: bool,
    ) -> ThreadsToWake {
        let has_moved = moved.is_beyond(before) || own_waits;
        ThreadsToWake {
            followers: self.has_followers() && (has_moved || !self.has_leader()),
            leader: self.has_leader() && has_moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::sim::Rng;
    use alloc::vec::Vec;

    fn below(rng: &mut Rng, bound: usize) -> usize {
        rng.below(bound as u64) as usize
    }

    #[derive(Debug)]
    enum State {
        /// It wants the lock, to take a turn.
        Awake,
        Asleep(Asleep),
        /// Its message has come.
        Done,
    }

    /// Threads that each wait for one message, and links; a turn takes everything from all of them.
    struct Node {
        threads: Threads,
        states: Vec<State>,
        /// Of each thread: its message lies in the node's memory.
        has_come: Vec<bool>,
        /// Messages in the links, each for a thread.
        in_links: Vec<usize>,
        moved: EventProgress,
        turns: usize,
        /// `false`, a planted fault: threads notify no other.
        tells: bool,
    }

    impl Node {
        fn new(threads: usize) -> Self {
            let states = (0..threads).map(|_| State::Awake).collect();
            Self {
                threads: Threads::default(),
                states,
                has_come: alloc::vec![false; threads],
                in_links: Vec::new(),
                moved: EventProgress::default(),
                turns: 0,
                tells: true,
            }
        }

        fn wake(&mut self, thread: usize) {
            if let State::Asleep(asleep) =
                core::mem::replace(&mut self.states[thread], State::Awake)
            {
                self.threads.wake(asleep);
            }
        }

        fn wake_all(&mut self, place: SleepPlace) {
            for thread in 0..self.states.len() {
                let sleeps =
                    matches!(&self.states[thread], State::Asleep(at) if at.place() == place);
                if sleeps {
                    self.wake(thread);
                }
            }
        }

        fn tell(&mut self, told: ThreadsToWake) {
            if told.followers && self.tells {
                self.wake_all(SleepPlace::Follows);
            }
            if told.leader && self.tells {
                self.wake_all(SleepPlace::Leads);
            }
        }

        /// A thread takes the lock, a turn, and falls asleep if its message has not come.
        fn run(&mut self, thread: usize, for_room: bool) {
            self.turns += 1;
            let before = self.moved;
            for to in core::mem::take(&mut self.in_links) {
                self.has_come[to] = true;
                self.moved.arrived += 1;
            }
            if self.has_come[thread] {
                self.states[thread] = State::Done;
                let told = self.threads.told(before, self.moved, false);
                return self.tell(told);
            }
            let (asleep, told) = self.threads.fall_asleep(for_room, before, self.moved, false);
            self.tell(told);
            self.states[thread] = State::Asleep(asleep);
        }

        /// A message comes, and wakes one of the threads that sleep on the links.
        fn arrive(&mut self, to: usize, rng: &mut Rng) {
            self.in_links.push(to);
            let on_links = |state: &State| matches!(state, State::Asleep(at) if at.place() != SleepPlace::Follows);
            let sleep: Vec<usize> =
                (0..self.states.len()).filter(|i| on_links(&self.states[*i])).collect();
            if !sleep.is_empty() {
                self.wake(sleep[below(rng, sleep.len())]);
            }
        }

        fn count(&self, place: SleepPlace) -> usize {
            let at = |state: &&State| matches!(state, State::Asleep(at) if at.place() == place);
            self.states.iter().filter(at).count()
        }

        fn awake(&self) -> Vec<usize> {
            let awake = |i: &usize| matches!(self.states[*i], State::Awake);
            (0..self.states.len()).filter(awake).collect()
        }

        fn check(&self) {
            let (leaders, followers) =
                (self.count(SleepPlace::Leads), self.count(SleepPlace::Follows));
            assert!(leaders <= 1, "{leaders} lead");
            assert_eq!(self.threads.others(), 2 * followers + leaders);
            if self.awake().is_empty() {
                assert!(followers == 0 || leaders == 1, "{followers} follow nobody");
            }
        }
    }

    /// Threads, messages and their order from a seed; returns whether every thread got its message.
    fn all_are_served(seed: u64, tells: bool) -> bool {
        let mut rng = Rng::new(seed);
        let threads = 1 + below(&mut rng, 6);
        let mut node = Node { tells, ..Node::new(threads) };
        let mut to_come: Vec<usize> = (0..threads).collect();
        for _ in 0..200 {
            let awake = node.awake();
            if !awake.is_empty() && below(&mut rng, 3) > 0 {
                let for_room = below(&mut rng, 4) == 0;
                node.run(awake[below(&mut rng, awake.len())], for_room);
            } else if !to_come.is_empty() {
                let next = to_come.swap_remove(below(&mut rng, to_come.len()));
                node.arrive(next, &mut rng);
            }
            if tells {
                node.check();
            }
        }
        while let Some(&thread) = node.awake().first() {
            node.run(thread, false);
        }
        // Room came: a thread beside the leader looks again by itself.
        node.wake_all(SleepPlace::Beside);
        while let Some(&thread) = node.awake().first() {
            node.run(thread, false);
        }
        node.states.iter().all(|state| matches!(state, State::Done))
    }

    #[test]
    fn whoever_waits_gets_its_message_whichever_thread_took_it() {
        for seed in 0..5000 {
            assert!(all_are_served(seed, true), "seed {seed}");
        }
        // The test can fail: threads that notify no other leave some asleep.
        assert!((0..100).any(|seed| !all_are_served(seed, false)));
    }

    #[test]
    fn a_message_to_the_leader_alone_takes_one_turn_however_many_follow() {
        let mut rng = Rng::new(1);
        let mut node = Node::new(50);
        (0..50).for_each(|thread| node.run(thread, false));
        assert_eq!((node.count(SleepPlace::Leads), node.count(SleepPlace::Follows)), (1, 49));
        node.turns = 0;
        node.arrive(0, &mut rng);
        assert_eq!(node.awake(), [0], "the leader");
        node.run(0, false);
        // It leads no more, so all are woken; one of them leads, and the others follow again.
        assert_eq!(node.awake().len(), 49);
        (1..50).for_each(|thread| node.run(thread, false));
        assert_eq!(
            (node.turns, node.count(SleepPlace::Leads), node.count(SleepPlace::Follows)),
            (50, 1, 48)
        );
    }

    #[test]
    fn nobody_is_woken_by_a_thread_that_moved_nothing() {
        let mut threads = Threads::default();
        let still = EventProgress { arrived: 7, queued: 1 };
        let (leads, told) = threads.fall_asleep(false, still, still, false);
        assert_eq!((leads.place(), told), (SleepPlace::Leads, ThreadsToWake::default()));
        let (follows, told) = threads.fall_asleep(false, still, still, false);
        assert_eq!((follows.place(), told), (SleepPlace::Follows, ThreadsToWake::default()));
        assert_eq!(threads.told(still, still, false), ThreadsToWake::default());
        // No thread waits for messages that have left.
        let fewer = EventProgress { queued: 0, ..still };
        assert_eq!(threads.told(still, fewer, false), ThreadsToWake::default());
        let both = ThreadsToWake { followers: true, leader: true };
        for (moved, own_waits) in [
            (EventProgress { arrived: 8, ..still }, false),
            (EventProgress { queued: 2, ..still }, false),
            (still, true),
        ] {
            assert_eq!(threads.told(still, moved, own_waits), both);
            let (beside, told) = threads.fall_asleep(true, still, moved, own_waits);
            assert_eq!((beside.place(), told), (SleepPlace::Beside, both));
            threads.wake(beside);
        }
        threads.wake(leads);
        // No thread leads: one of the followers must, for any progress.
        let told = threads.told(still, still, false);
        assert_eq!(told, ThreadsToWake { followers: true, leader: false });
        threads.wake(follows);
        assert!(threads.is_alone());
    }
}
