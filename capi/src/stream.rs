//! Streams: records in order, one way, from one sender (Hamlyn 3.3).

use crate::boundary::{
    Copied, Done, Failure, bytes, bytes_out, get, guard, h_status, h_status::*, out,
};
use crate::common::{closed, connected, free, grown, offered};
use crate::endpoint::{One, give, handles, sent};
use crate::links::h_peer_t;
use crate::node::h_node_t;
use core::ffi::{c_char, c_void};
use core::time::Duration;
use hamlyn::Node;
use hamlyn::protocol::{
    ApertureRecord, ApertureStreamReceiver, ApertureStreamSender, Connected, Connection, EndPoint,
    Exclusive, Manager, Offer, Offered, ReceiveError, Record, RecordBytes, RecordLoanApart,
    StreamConfig, StreamReceiver, StreamSender,
};
use std::collections::VecDeque;

/// Receives the records of one sender, in the order of sending.
pub struct h_stream_receiver_t(pub(crate) One<Intake>);

/// Sends records.
pub struct h_stream_sender_t(One<Outflow>);

handles!(h_stream_receiver_t: Exclusive<Intake>, h_stream_sender_t: Exclusive<Outflow>);

pub(crate) struct Intake {
    inner: Inflow,
    /// Received records that were not released, by number.
    lent: VecDeque<Lent>,
}

impl Intake {
    pub(crate) fn still(receiver: StreamReceiver) -> Exclusive<Self> {
        Exclusive::new(Self { inner: Inflow::Still(receiver), lent: VecDeque::new() })
    }
}

/// The receiver, as it was made.
enum Inflow {
    Still(StreamReceiver),
    Volatile(ApertureStreamReceiver),
}

#[derive(Clone, Copy)]
enum Lent {
    Still(Record),
    Volatile(ApertureRecord),
}

impl Lent {
    fn number(&self) -> u64 {
        match self {
            Self::Still(record) => record.number(),
            Self::Volatile(record) => record.number(),
        }
    }
}

macro_rules! either {
    ($type:ident, $value:expr, $inner:ident => $call:expr) => {
        match $value {
            $type::Still($inner) => $call,
            $type::Volatile($inner) => $call,
        }
    };
}

impl Intake {
    fn receive(&mut self, timeout: Option<Duration>) -> Result<Lent, ReceiveError> {
        Ok(match &mut self.inner {
            Inflow::Still(inner) => Lent::Still(inner.receive(timeout)?.keep()),
            Inflow::Volatile(inner) => Lent::Volatile(inner.receive(timeout)?.keep()),
        })
    }

    fn bytes(&self, lent: &Lent) -> Result<RecordBytes<'_>, ReceiveError> {
        match (&self.inner, lent) {
            (Inflow::Still(inner), Lent::Still(record)) => {
                Ok(RecordBytes::Still(inner.bytes(record)?))
            }
            (Inflow::Volatile(inner), Lent::Volatile(record)) => inner.bytes(record),
            _ => unreachable!("a stream lends records of its own kind"),
        }
    }

    fn release(&mut self, lent: &Lent) -> Result<(), ReceiveError> {
        match (&mut self.inner, lent) {
            (Inflow::Still(inner), Lent::Still(record)) => inner.release(record),
            (Inflow::Volatile(inner), Lent::Volatile(record)) => inner.release(record),
            _ => unreachable!("a stream lends records of its own kind"),
        }
    }

    /// A lent record, and its place among them.
    fn find(&self, number: u64) -> Done<(usize, Lent)> {
        let first = self.lent.front().map_or(0, Lent::number);
        let place = number.checked_sub(first).and_then(|n| usize::try_from(n).ok());
        let found = place.and_then(|place| Some((place, *self.lent.get(place)?)));
        found.filter(|(_, lent)| lent.number() == number).ok_or_else(|| {
            let text = format!("record {number} was released, or has not been received");
            Failure::new(H_NO_SUCH, text)
        })
    }
}

impl EndPoint for Intake {
    fn is_ready_in(&self, node: &Node) -> bool {
        either!(Inflow, &self.inner, inner => inner.is_ready_in(node))
    }

    fn manager(&self) -> &Manager {
        either!(Inflow, &self.inner, inner => inner.manager())
    }
}

impl Offered for Intake {
    fn offer(&self) -> Offer<'_> {
        either!(Inflow, &self.inner, inner => inner.offer())
    }
}

/// A sender, and the record that is being written in place, if any.
pub(crate) struct Outflow {
    inner: Grown,
    on_loan: Option<RecordLoanApart>,
}

/// The sender, as it was grown.
enum Grown {
    Still(StreamSender),
    Volatile(ApertureStreamSender),
}

impl Outflow {
    pub(crate) fn still(sender: StreamSender) -> Exclusive<Self> {
        Exclusive::new(Self { inner: Grown::Still(sender), on_loan: None })
    }

    fn volatile(sender: ApertureStreamSender) -> Exclusive<Self> {
        Exclusive::new(Self { inner: Grown::Volatile(sender), on_loan: None })
    }

    /// The sender, for calls that would overwrite a record that is on loan.
    fn free(&mut self) -> Done<&mut Grown> {
        match self.on_loan {
            None => Ok(&mut self.inner),
            Some(_) => Err(Failure::new(
                H_STATE,
                "a record of this sender is on loan: h_stream_loan_send and h_stream_loan_free end that",
            )),
        }
    }

    /// Ends the loan, without sending anything of it.
    fn end_loan(&mut self) {
        if let (Grown::Still(inner), Some(apart)) = (&mut self.inner, self.on_loan.take()) {
            drop(inner.attach(apart));
        }
    }
}

impl Drop for Outflow {
    fn drop(&mut self) {
        self.end_loan();
    }
}

impl Connected for Outflow {
    fn connection(&self) -> &Connection {
        either!(Grown, &self.inner, inner => inner.connection())
    }

    fn explain(&mut self) -> String {
        either!(Grown, &mut self.inner, inner => inner.explain())
    }
}

/// Configuration of a stream's receiver; 0 for the default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_stream_config_t {
    /// Bytes of a buffer: the longest message of combined small records (64 KiB).
    pub buffer_bytes: usize,
    /// Buffers that wait for messages, 1 to 256 (8).
    pub buffers: u32,
    /// All buffers, those of records that are not yet released included (64).
    pub buffers_max: u32,
    /// Longest record, in bytes (64 MiB).
    pub record_bytes_max: usize,
    /// Bytes of an aperture for long records (none): a few times the longest. A sender that uses it
    /// writes them straight into this process's memory, and can change them until they are
    /// released: such a record is *volatile*, and only ever copied, by h_stream_read.
    pub aperture_bytes: u64,
}

/// A record that has arrived.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_record_t {
    /// The number of records that came before it.
    pub number: u64,
    /// Its bytes, in the memory where they arrived. They are stable until it is released. Null if
    /// the record is volatile.
    pub data: *const c_void,
    /// The number of its bytes.
    pub length: usize,
    /// Whether its sender can still change it; then copy the bytes that you need with
    /// h_stream_read, check the copy, and use only that. Only with an aperture.
    pub is_volatile: bool,
}

/// Makes a receiver; `config` may be null. To be freed with h_stream_receiver_close or
/// h_stream_receiver_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_receiver_new(
    node: *mut h_node_t,
    config: *const h_stream_config_t,
    receiver: *mut *mut h_stream_receiver_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(receiver, "receiver")?);
        let mut wanted = StreamConfig::default();
        let mut aperture_bytes = 0;
        if !config.is_null() {
            let config = get(config, "config")?;
            if config.buffer_bytes != 0 {
                wanted.buffer_bytes = config.buffer_bytes;
            }
            if config.buffers != 0 {
                wanted.buffers = config.buffers;
            }
            if config.buffers_max != 0 {
                wanted.buffers_max = config.buffers_max;
            }
            if config.record_bytes_max != 0 {
                wanted.record_bytes_max = config.record_bytes_max;
            }
            aperture_bytes = config.aperture_bytes;
        }
        let manager = node.manager()?;
        let inner = match aperture_bytes {
            0 => Inflow::Still(StreamReceiver::new(manager, wanted)?),
            bytes => Inflow::Volatile(ApertureStreamReceiver::new(manager, wanted, bytes)?),
        };
        place.write(give(node, Exclusive::new(Intake { inner, lent: VecDeque::new() }))?);
        Ok(())
    })
}

offered! {
    receiver: h_stream_receiver_t, of "the sender", "the sender";
    h_stream_receiver_seed, h_stream_receiver_serve, h_stream_receiver_stop_serving,
    h_stream_receiver_set_admission, h_stream_receiver_offer
}

/// Receives the next record, in the order of sending, waiting at most `timeout_ns`. Its bytes stay
/// where they arrived, and are stable until it is released.
///
/// Errors: H_NOTHING, no record waits and the time limit was 0; H_TIMED_OUT; H_CLOSED, the sender
/// has sent everything, and all of it was received; H_DIED, H_HUNG_UP, the sender ended without
/// that, and all arrived records were received; H_MISBEHAVED; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_receive(
    receiver: *mut h_stream_receiver_t,
    timeout_ns: i64,
    record: *mut h_record_t,
) -> h_status {
    guard(|| {
        let (receiver, place) = (get(receiver, "receiver")?, out(record, "record")?);
        let record = receiver.0.receive(timeout_ns, |intake, limit| {
            let lent = intake.receive(limit)?;
            let (data, length, is_volatile) = match intake.bytes(&lent)? {
                RecordBytes::Still(bytes) => (bytes.as_ptr().cast(), bytes.len(), false),
                RecordBytes::Volatile(bytes) => (core::ptr::null(), bytes.len(), true),
            };
            intake.lent.push_back(lent);
            Ok(h_record_t { number: lent.number(), data, length, is_volatile })
        })?;
        place.write(record);
        Ok(())
    })
}

/// Copies `length` bytes from `offset` of the record with this number to `to`.
///
/// Errors: H_NO_SUCH, it was released, or has not been received; H_INVALID, outside the record;
/// H_CLOSED, it is volatile, and its memory is no longer there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_read(
    receiver: *mut h_stream_receiver_t,
    number: u64,
    offset: usize,
    to: *mut c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let to = bytes_out(to, length, "to")?;
        let intake = receiver.0.lock()?;
        match intake.bytes(&intake.find(number)?.1)? {
            RecordBytes::Still(bytes) => {
                let Some(from) = bytes.get(offset..).and_then(|rest| rest.get(..length)) else {
                    let text = format!(
                        "{length} bytes from offset {offset} are not inside the record's {}",
                        bytes.len()
                    );
                    return Err(Failure::invalid(text));
                };
                to.copy_from_slice(from);
            }
            RecordBytes::Volatile(bytes) => bytes.read(offset, to)?,
        }
        Ok(())
    })
}

/// Frees all records up to and including the one with this number; their buffers are used again,
/// and a sender that waits for one goes on.
///
/// Errors: H_NO_SUCH, it was released, or has not been received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_release(
    receiver: *mut h_stream_receiver_t,
    number: u64,
) -> h_status {
    guard(|| {
        let mut intake = get(receiver, "receiver")?.0.lock()?;
        let (place, lent) = intake.find(number)?;
        intake.release(&lent)?;
        intake.lent.drain(..=place);
        Ok(())
    })
}

/// The identity of the sender, from the kernel.
///
/// Errors: H_NOTHING, there is no sender yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_receiver_peer(
    receiver: *mut h_stream_receiver_t,
    peer: *mut h_peer_t,
) -> h_status {
    guard(|| {
        let (receiver, place) = (get(receiver, "receiver")?, out(peer, "peer")?);
        let intake = receiver.0.lock()?;
        let none = || Failure::new(H_NOTHING, "the stream has no sender yet");
        let connection = either!(Inflow, &intake.inner, inner => inner.connection());
        place.write(connection.ok_or_else(none)?.peer().into());
        Ok(())
    })
}

/// The path that the stream takes, and the reason: a text, copied to `buffer` and followed by a
/// zero byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_receiver_explain(
    receiver: *mut h_stream_receiver_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let receiver = get(receiver, "receiver")?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        let intake = receiver.0.lock()?;
        let text = either!(Inflow, &intake.inner, inner => inner.explain());
        copied.put_text(&text)
    })
}

closed! {
    /// Unreleased records are gone, and pointers to them no longer valid; the sender is notified.
    receiver: h_stream_receiver_t, "every queued message of the node";
    h_stream_receiver_close, h_stream_receiver_free
}

grown! {
    sender: h_stream_sender_t, "the sender" of "receiver", StreamSender => Outflow::still;
    h_stream_sender_grow, h_stream_sender_connect, h_stream_sender_grow_from; h_stream_sender_close, h_stream_sender_free
}

grown! {
    /// It writes long records straight into the receiver's memory, if the receiver has an aperture;
    /// if the aperture cannot be mapped, they go through the link, and h_stream_sender_explain says
    /// so.
    sender: h_stream_sender_t, "a sender" of "receiver", ApertureStreamSender => Outflow::volatile;
    h_stream_sender_grow_with_aperture, h_stream_sender_connect_with_aperture, h_stream_sender_grow_from_with_aperture;
    h_stream_sender_close, h_stream_sender_free
}

/// Sends a record of `length` bytes, waiting at most `timeout_ns` for room. A small one leaves with
/// others, at the latest with h_stream_flush. A long one leaves at once; if the time limit passes
/// when a part of it has left, the status is H_OK, too: the record was taken, its rest leaves only
/// in later calls with this sender, and only h_stream_flush, or h_stream_sender_close, confirms it.
///
/// Errors, nothing of this record was taken: H_TOO_LONG, see h_stream_bytes_max; H_FULL, the time
/// limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the receiver is gone, which a call notices when a
/// message leaves; H_MISBEHAVED; H_STATE, a record is on loan (h_stream_loan).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_send(
    sender: *mut h_stream_sender_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let sender = get(sender, "sender")?;
        let data = bytes(data, length, "data")?;
        let (mut sender, left) = sender.0.enter(timeout_ns, H_FULL)?;
        sent(either!(Grown, sender.free()?, inner => inner.send(data, left)), timeout_ns)
    })
}

/// Lends a record of `length` bytes, to be written in place and sent with h_stream_loan_send: this
/// saves a copy of a small one. `data` gets the address of its bytes; the caller may write them
/// until it is sent or freed, and must not touch them afterwards. At first they are zero, or those
/// of earlier records of this sender. Waits at most `timeout_ns` for room if small records have to
/// leave first.
///
/// A sender has one record on loan at a time, and until that is sent, or freed with
/// h_stream_loan_free, it sends and flushes nothing else (H_STATE). Freeing the sender frees the
/// loan, too.
///
/// Errors, nothing is on loan: H_TOO_LONG, see h_stream_bytes_max; H_FULL, the time limit was 0;
/// H_TIMED_OUT; H_CLOSED, H_DIED, H_HUNG_UP, the receiver is gone; H_MISBEHAVED; H_STATE, a record
/// is on loan already, and stays so, or the sender was grown with an aperture. Part of the small
/// records that had to leave first may have left; the rest leaves in later calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_loan(
    sender: *mut h_stream_sender_t,
    length: usize,
    timeout_ns: i64,
    data: *mut *mut c_void,
) -> h_status {
    guard(|| {
        let (sender, place) = (get(sender, "sender")?, out(data, "data")?);
        let (mut sender, left) = sender.0.enter(timeout_ns, H_FULL)?;
        let Grown::Still(inner) = sender.free()? else {
            let text = "a sender that was grown with an aperture lends no records: h_stream_send";
            return Err(Failure::new(H_STATE, text));
        };
        let mut loan = sent(inner.loan(length, left), timeout_ns)?;
        place.write(loan.as_mut_ptr().cast());
        let apart = loan.detach();
        sender.on_loan = Some(apart);
        Ok(())
    })
}

/// Sends the first `length` bytes of the record that is on loan, as h_stream_send does. The loan
/// ends, and the pointer to its bytes is no longer valid. On an error it is on loan as before, but
/// shortened to `length`.
///
/// Errors: as h_stream_send; H_INVALID, `length` is more than the record has; H_STATE, no record is
/// on loan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_loan_send(
    sender: *mut h_stream_sender_t,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let (mut sender, left) = get(sender, "sender")?.0.enter(timeout_ns, H_FULL)?;
        let Outflow { inner: Grown::Still(inner), on_loan } = &mut *sender else {
            return Err(none_on_loan());
        };
        let mut loan = inner.attach(on_loan.take().ok_or_else(none_on_loan)?);
        if length > loan.len() {
            let text = format!("length is {length}, and the record has {} bytes", loan.len());
            *on_loan = Some(loan.detach());
            return Err(Failure::invalid(text));
        }
        loan.truncate(length);
        let result = loan.send_or_keep(left);
        if result.is_err() {
            *on_loan = Some(loan.detach());
        }
        sent(result, timeout_ns)
    })
}

fn none_on_loan() -> Failure {
    Failure::new(H_STATE, "no record of this sender is on loan")
}

/// Frees the record that is on loan, if any, without sending any of it. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_loan_free(sender: *mut h_stream_sender_t) {
    guard(|| {
        if !sender.is_null() {
            get(sender, "sender")?.0.lock()?.end_loan();
        }
        Ok(())
    });
}

/// Sends the small records that wait for others, waiting at most `timeout_ns` for room. After H_OK
/// every record is on its way, and arrives even if this process ends.
///
/// Errors: as h_stream_send; the rest stays for a later call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_flush(
    sender: *mut h_stream_sender_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let (mut sender, left) = get(sender, "sender")?.0.enter(timeout_ns, H_FULL)?;
        sent(either!(Grown, sender.free()?, inner => inner.flush(left)), timeout_ns)
    })
}

/// The longest record, in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_bytes_max(
    sender: *mut h_stream_sender_t,
    bytes_max: *mut usize,
) -> h_status {
    guard(|| {
        let (sender, place) = (get(sender, "sender")?, out(bytes_max, "bytes_max")?);
        let sender = sender.0.lock()?;
        place.write(either!(Grown, &sender.inner, inner => inner.bytes_max()));
        Ok(())
    })
}

connected!(sender: h_stream_sender_t; h_stream_sender_peer, h_stream_sender_explain);

/// Sends the rest and tells the receiver that this was all, waiting at most `timeout_ns`. Then
/// frees the sender, whatever the result; to try for longer, call h_stream_flush first.
///
/// Errors: H_TIMED_OUT, records were left, and the receiver knows that some are missing; H_CLOSED,
/// H_DIED, the receiver is gone; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_sender_close(
    sender: *mut h_stream_sender_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let this = get(sender, "sender")?;
        let closed = end(this, timeout_ns);
        free(sender, "sender")?;
        closed
    })
}

fn end(sender: &h_stream_sender_t, timeout_ns: i64) -> Done {
    let (mut sender, left) = sender.0.enter(timeout_ns, H_TIMED_OUT)?;
    sender.end_loan();
    Ok(either!(Grown, &mut sender.inner, inner => inner.close(left))?)
}

/// Frees a sender, as after a failure: sends as much as it can without waiting, and tells the
/// receiver with H_HUNG_UP that records may be missing. If all went well, call
/// h_stream_sender_close instead. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stream_sender_free(sender: *mut h_stream_sender_t) {
    guard(|| free(sender, "sender"));
}
