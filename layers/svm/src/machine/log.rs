//! Notices that a client or a server knows, of bounded number: for others that know fewer.

use std::collections::VecDeque;

use super::Shape;
use super::wire::Notice;

pub struct Log {
    processes: usize,
    max: usize,
    /// The vector: all notices up to these intervals were here once.
    pub known: Vec<u64>,
    /// All clients know up to these intervals: nobody asks.
    safe: Vec<u64>,
    /// Notices up to these intervals were thrown away, for want of room.
    dropped: Vec<u64>,
    /// For a home (row) and a writer, the last interval with pages there.
    reached: Vec<u64>,
    /// Of each writer, in the order of intervals.
    notices: Vec<VecDeque<Notice>>,
    count: usize,
}

impl Log {
    pub fn new(shape: &Shape) -> Self {
        let n = shape.processes;
        Self {
            processes: n,
            max: shape.log_max,
            known: vec![0; n],
            safe: vec![0; n],
            dropped: vec![0; n],
            reached: vec![0; n * n],
            notices: vec![VecDeque::new(); n],
            count: 0,
        }
    }

    pub fn add(&mut self, notice: &Notice) {
        let (home, writer) = (usize::from(notice.home), usize::from(notice.writer));
        let interval = notice.interval.get();
        // Another client may have told it already, up to a later interval.
        let last = self.notices[writer].back().map_or(0, |last| last.interval.get());
        if interval <= self.known[writer] || interval < last {
            return;
        }
        let reached = &mut self.reached[home * self.processes + writer];
        *reached = interval.max(*reached);
        if notice.count.get() > 0 {
            self.notices[writer].push_back(*notice);
            self.count += 1;
        }
        while self.count > self.max {
            let longest = (0..self.processes).max_by_key(|&writer| self.notices[writer].len());
            let longest = longest.expect("there are notices");
            let first = self.notices[longest].front().expect("the longest").interval.get();
            self.drop_until(longest, first);
        }
    }

    /// All notices up to `known` were added, or else (`all`) some of them are lost.
    pub fn complete(&mut self, known: impl Iterator<Item = u64>, all: bool) {
        for (writer, known) in known.enumerate() {
            if known > self.known[writer] {
                self.known[writer] = known;
                if all {
                    self.drop_until(writer, known);
                }
            }
        }
    }

    /// All clients know all notices that are here.
    pub fn forget(&mut self) {
        self.safe.copy_from_slice(&self.known);
        self.notices.iter_mut().for_each(VecDeque::clear);
        self.count = 0;
    }

    /// Notices for a process that knows all up to `base`. `true`: some are lost, any page may have been
    /// written, and the notices say for which intervals to wait.
    pub fn since(&self, base: &[u64], notices: &mut Vec<Notice>) -> bool {
        notices.clear();
        let base = |writer: usize| base[writer].max(self.safe[writer]);
        let all = (0..self.processes).any(|writer| self.dropped[writer] > base(writer));
        if all {
            for (at, &interval) in self.reached.iter().enumerate() {
                let (home, writer) = (at / self.processes, at % self.processes);
                if interval > base(writer) {
                    let (home, writer) = (home as u8, writer as u8);
                    let (page, count) = (0.into(), 0.into());
                    notices.push(Notice { interval: interval.into(), page, count, home, writer });
                }
            }
        } else {
            for (writer, of_writer) in self.notices.iter().enumerate() {
                let from = of_writer.partition_point(|it| it.interval.get() <= base(writer));
                notices.extend(of_writer.range(from..));
            }
        }
        all
    }

    fn drop_until(&mut self, writer: usize, interval: u64) {
        self.dropped[writer] = interval.max(self.dropped[writer]);
        let notices = &mut self.notices[writer];
        let old = notices.partition_point(|notice| notice.interval.get() <= interval);
        notices.drain(..old);
        self.count -= old;
    }
}
