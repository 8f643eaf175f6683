//! The receiver of a stream.

use super::intake::Intake;
use super::{PROTOCOL, Record, StreamConfig, StreamOffer};
use crate::node::Node;
use crate::protocol::aperture_stream::FarOffer;
use crate::protocol::ends::{explain, offered};
use crate::protocol::manager::{OfferId, Offering};
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager, ReceiveError};
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::string::String;

/// Receives a stream of records from the one sender that is grown. `Send`.
pub struct StreamReceiver {
    pub(in crate::protocol) manager: Manager,
    pub(in crate::protocol) offer: OfferId,
    intake: Intake,
}

impl StreamReceiver {
    /// A receiver with its first buffers.
    pub fn new(manager: &Manager, config: StreamConfig) -> Result<Self, GrowError> {
        Self::with_far(manager, config, None)
    }

    pub(in crate::protocol) fn with_far(
        manager: &Manager,
        config: StreamConfig,
        far: Option<FarOffer>,
    ) -> Result<Self, GrowError> {
        config.check()?;
        // Coalesced records are padded to four bytes, and so is their buffer.
        let config = StreamConfig { buffer_bytes: config.buffer_bytes & !3, ..config };
        let intake = Intake::new(&mut manager.lock(), config, far).map_err(GrowError::SetUp)?;
        let offer = manager
            .offer(Kind::Stream, Offering::Other(Box::new(StreamOffer(intake.shared.clone()))));
        Ok(Self { manager: manager.clone(), offer, intake })
    }

    offered!("the [`StreamSender`](crate::protocol::StreamSender)");

    /// The next record, if it is there or comes in one turn.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Record>, ReceiveError> {
        ReceiveError::unless_timed_out(self.receive(Some(Duration::ZERO)))
    }

    /// The next record, in the order of sending; waits at most `timeout`. Its bytes stand still
    /// until it is [released](Self::release). After the sender's end, everything that it had
    /// committed comes first; then [`ReceiveError::Ended`], with
    /// [`CloseReason::Closed`](crate::node::CloseReason::Closed) only if the sender had sent
    /// everything.
    #[inline]
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Record, ReceiveError> {
        match self.receive_at_once() {
            Some(record) => Ok(record),
            None => self.receive_message(timeout),
        }
    }

    #[inline]
    fn receive_at_once(&mut self) -> Option<Record> {
        let Self { manager, intake, .. } = self;
        match intake.next_record() {
            None => {
                let length = manager.shared.at_once(|node, _| intake.take_one(node))?;
                Some(intake.passed(length))
            }
            record => record,
        }
    }

    #[inline(never)]
    fn receive_message(&mut self, timeout: Option<Duration>) -> Result<Record, ReceiveError> {
        loop {
            if let Some(record) = self.intake.next_record() {
                return Ok(record);
            }
            if let Some(error) = self.intake.over() {
                self.expel();
                return Err(error);
            }
            let intake = &mut self.intake;
            self.manager.shared.wait_until(timeout, |node, _| intake.look(node))?;
            if self.intake.fault.is_some() {
                self.expel();
            }
        }
    }

    #[cold]
    fn expel(&mut self) {
        let intake = &mut self.intake;
        let link = intake.connection().map(Connection::link);
        if let (Some(why), Some(link), false) = (&intake.fault, link, intake.is_expelled) {
            self.manager.expel(link, why);
            intake.is_expelled = true;
        }
    }

    /// The bytes of a record, where they arrived. No lock, no copy.
    #[inline]
    pub fn bytes(&self, record: &Record) -> Result<&[u8], ReceiveError> {
        let intake = &self.intake;
        let start = record.start as usize;
        let is_own = record.stream == intake.stream && record.number >= intake.released;
        let held = intake.held.get(record.message).filter(|_| is_own);
        let bytes = held.map_or(&[][..], |held| intake.taken.bytes(held.lies));
        match bytes.get(start..start + record.length as usize).filter(|_| held.is_some()) {
            Some(bytes) => Ok(bytes),
            None => Err(ReceiveError::Misuse(format!(
                "record {} was released, or is another stream's",
                record.number
            ))),
        }
    }

    /// Frees all records up to and including this one; their buffers are used again, and a sender
    /// that waits for one goes on.
    #[inline]
    pub fn release(&mut self, record: &Record) -> Result<(), ReceiveError> {
        let intake = &mut self.intake;
        if record.stream != intake.stream {
            return Err(not_its_own(record));
        }
        if record.number >= intake.released {
            intake.released = record.number + 1;
            if intake.has_released() {
                self.give_back();
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn give_back(&mut self) {
        self.intake.drop_first();
        while self.intake.has_released() {
            self.intake.drop_first();
        }
        if self.intake.is_due() || self.intake.asked.is_some() {
            self.replenish();
        }
    }

    #[cold]
    fn replenish(&mut self) {
        if self.intake.over().is_none() {
            self.intake.replenish(&mut self.manager.shared.lock());
        }
    }

    /// The sender said something about the aperture that cannot be.
    #[cold]
    pub(in crate::protocol) fn misbehaves(&mut self, why: &str) -> ReceiveError {
        let _ = self.intake.misbehaves(why.into());
        self.expel();
        ReceiveError::Misbehaved(why.into())
    }

    pub(in crate::protocol) fn record_bytes_max(&self) -> usize {
        self.intake.config.record_bytes_max
    }

    pub(in crate::protocol) fn far(&self) -> Option<&FarOffer> {
        self.intake.shared.far.as_ref()
    }

    /// The sender, once it has one: who that is, and whether it has ended.
    pub fn connection(&self) -> Option<&Connection> {
        self.intake.connection()
    }

    /// Buffers of the usual size that exist now.
    pub fn buffers(&self) -> u32 {
        self.intake.buffers
    }

    /// Which path the records take, and why.
    pub fn explain(&self) -> String {
        match self.connection() {
            Some(connection) => explain(&self.manager, connection, PROTOCOL),
            None => format!("{PROTOCOL}; no sender yet"),
        }
    }
}

#[cold]
fn not_its_own(record: &Record) -> ReceiveError {
    ReceiveError::Misuse(format!("record {} is another stream's", record.number))
}

impl EndPoint for StreamReceiver {
    fn is_ready_in(&self, node: &Node) -> bool {
        let intake = &self.intake;
        intake.held.is_unread()
            || intake.over().is_some()
            || intake.connection().is_some_and(|connection| {
                node.is_ready(intake.queue) == Ok(true) || connection.ended().is_some()
            })
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        let Some(_) = self.manager.withdraw(self.offer) else { return };
        self.intake.remove(&mut self.manager.lock());
    }
}
