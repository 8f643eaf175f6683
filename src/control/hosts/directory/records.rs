//! Messages of the DNS: questions, and the contents of answers. Bytes alone.
//!
//! No answer is trusted: it counts only if it answers the question that was asked, has no more
//! records than [`RECORDS_MAX`], and each record of the wanted kind is valid.

use crate::control::hosts::name::{PLACES_MAX, Place};
use core::net::IpAddr;
use domain::base::iana::{Rcode, Rtype};
use domain::base::name::{Name, ParsedName};
use domain::base::rdata::ParseRecordData;
use domain::base::{Message, MessageBuilder, ToName};
use domain::rdata::{A, Aaaa, Srv};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// Most records of an answer that are read: a service's places, and aliases on the way to them.
pub const RECORDS_MAX: u16 = 128;

/// The wanted kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The places of a service.
    Service,
    /// Addresses of IPv4.
    V4,
    /// Addresses of IPv6.
    V6,
}

/// A question in the form that is sent.
#[derive(Clone, Debug)]
pub struct Question {
    message: Message<Vec<u8>>,
    kind: RecordKind,
}

/// The meaning of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum DnsReply {
    /// Not an answer to the question, or not a message.
    Foreign,
    /// A truncated answer: ask again by TCP.
    Cut,
    /// The server failed; the reason.
    Failed(String),
    /// There is no such record.
    Nothing,
    /// There is one, and it states that the service does not exist (RFC 2782: the target `.`).
    NotAvailable,
    /// The places of the service, in no particular order.
    Services(Vec<SrvRecord>),
    /// The addresses.
    Addresses(Vec<IpAddr>),
    /// Invalid records; the reason.
    Wrong(String),
}

/// The contents of a SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvRecord {
    /// Lower values come first.
    pub priority: u16,
    /// Among records of one priority: its relative probability of being the first.
    pub weight: u16,
    /// The host and port.
    pub place: Place,
}

impl Question {
    /// A question with this number. The error is the reason why the name is not valid.
    pub fn new(number: u16, name: &str, kind: RecordKind) -> Result<Self, String> {
        let name: Name<Vec<u8>> = name.parse().map_err(|error| format!("{error}"))?;
        let rtype = match kind {
            RecordKind::Service => Rtype::SRV,
            RecordKind::V4 => Rtype::A,
            RecordKind::V6 => Rtype::AAAA,
        };
        let mut builder = MessageBuilder::new_vec();
        builder.header_mut().set_id(number);
        builder.header_mut().set_rd(true);
        let mut question = builder.question();
        question.push((name, rtype)).map_err(|error| error.to_string())?;
        Ok(Self { message: question.into_message(), kind })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.message.as_slice()
    }

    /// Reads `bytes` as an answer to this question.
    pub fn reply(&self, bytes: &[u8]) -> DnsReply {
        let Ok(message) = Message::from_slice(bytes) else { return DnsReply::Foreign };
        if !message.is_answer(&self.message) {
            return DnsReply::Foreign;
        }
        match message.header().rcode() {
            Rcode::NOERROR if message.header().tc() => return DnsReply::Cut,
            Rcode::NOERROR => {}
            Rcode::NXDOMAIN => return DnsReply::Nothing,
            code => return DnsReply::Failed(code.to_string()),
        }
        let records = message.header_counts().ancount();
        if records > RECORDS_MAX {
            return DnsReply::Wrong(format!("{records} records, and {RECORDS_MAX} are most"));
        }
        let found = match self.kind {
            RecordKind::Service => services(message),
            RecordKind::V4 => data(message, |a: A| a.addr().into()).and_then(addresses),
            RecordKind::V6 => data(message, |aaaa: Aaaa| aaaa.addr().into()).and_then(addresses),
        };
        found.unwrap_or_else(DnsReply::Wrong)
    }
}

const ALIASES: &str = "its aliases lead nowhere";

/// The contents of the records of one kind that belong to the name that was asked for, or to the
/// one that it is an alias of.
fn data<'a, D: ParseRecordData<'a, [u8]>, T>(
    message: &'a Message<[u8]>,
    of: impl Fn(D) -> T,
) -> Result<Vec<T>, String> {
    let name = message.canonical_name().ok_or(ALIASES)?;
    let mut found = Vec::new();
    for record in message.answer().map_err(|e| e.to_string())?.limit_to_in::<D>() {
        let record = record.map_err(|e| e.to_string())?;
        if record.owner().name_eq(&name) {
            found.push(of(record.into_data()));
        }
    }
    Ok(found)
}

fn addresses(found: Vec<IpAddr>) -> Result<DnsReply, String> {
    if found.len() > PLACES_MAX {
        return Err(format!("{} addresses, and {PLACES_MAX} are most", found.len()));
    }
    Ok(if found.is_empty() { DnsReply::Nothing } else { DnsReply::Addresses(found) })
}

fn services(message: &Message<[u8]>) -> Result<DnsReply, String> {
    let records = data(message, |record: Srv<ParsedName<&[u8]>>| record)?;
    let is_denied = records.iter().any(|record| record.target().is_root());
    let mut found = Vec::new();
    for record in records.iter().filter(|record| !record.target().is_root()) {
        let text = format!("{}:{}", record.target(), record.port());
        let place = text.parse::<Place>().map_err(|e| e.to_string())?;
        found.push(SrvRecord { priority: record.priority(), weight: record.weight(), place });
    }
    if found.len() > PLACES_MAX {
        return Err(format!("{} places, and {PLACES_MAX} are most", found.len()));
    }
    Ok(match (found.is_empty(), is_denied) {
        (false, _) => DnsReply::Services(found),
        (true, true) => DnsReply::NotAvailable,
        (true, false) => DnsReply::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::str::FromStr;
    use domain::rdata::Cname;
    use proptest::prelude::*;

    fn name(text: &str) -> Name<Vec<u8>> {
        Name::from_str(text).unwrap()
    }

    fn asked() -> Question {
        Question::new(7, "_quotes._tcp.example.org", RecordKind::Service).unwrap()
    }

    /// Owner, and priority, weight, port, target.
    type Record<'a> = (&'a str, (u16, u16, u16, &'a str));

    /// An answer to [`asked`], with these records.
    fn answer(records: &[Record]) -> Vec<u8> {
        let builder = MessageBuilder::new_vec();
        let mut answer = builder.start_answer(&asked().message, Rcode::NOERROR).unwrap();
        for (owner, (priority, weight, port, target)) in records {
            let data = Srv::new(*priority, *weight, *port, name(target));
            answer.push((name(owner), 60, data)).unwrap();
        }
        answer.finish()
    }

    const OWN: &str = "_quotes._tcp.example.org";

    #[test]
    fn the_places_of_a_service_are_those_of_its_own_records() {
        let bytes = answer(&[
            (OWN, (10, 3, 7000, "a.example.")),
            ("_store._tcp.example.org", (0, 0, 1, "x.example.")),
            // The DNS ignores case.
            ("_Quotes._TCP.Example.org", (20, 0, 7001, "B.example.")),
            (OWN, (0, 0, 0, ".")),
        ]);
        let service = |priority, weight, host: &str, port| {
            let place = Place { host: host.into(), port };
            SrvRecord { priority, weight, place }
        };
        let expected = [service(10, 3, "a.example", 7000), service(20, 0, "B.example", 7001)];
        assert_eq!(asked().reply(&bytes), DnsReply::Services(expected.into()));
        assert_eq!(asked().reply(&answer(&[(OWN, (0, 0, 0, "."))])), DnsReply::NotAvailable);
        assert_eq!(asked().reply(&answer(&[])), DnsReply::Nothing);
        let other = [("_store._tcp.example.org", (0, 0, 1, "x.example."))];
        assert_eq!(asked().reply(&answer(&other)), DnsReply::Nothing);
    }

    #[test]
    fn an_alias_is_followed_within_the_answer() {
        let builder = MessageBuilder::new_vec();
        let mut answer = builder.start_answer(&asked().message, Rcode::NOERROR).unwrap();
        answer.push((name(OWN), 60, Cname::new(name("here.example.")))).unwrap();
        answer.push((name("here.example."), 60, Srv::new(0, 0, 9, name("a.example.")))).unwrap();
        let DnsReply::Services(found) = asked().reply(&answer.finish()) else {
            panic!("no places")
        };
        assert_eq!(found[0].place.to_string(), "a.example:9");

        let builder = MessageBuilder::new_vec();
        let mut round = builder.start_answer(&asked().message, Rcode::NOERROR).unwrap();
        round.push((name(OWN), 60, Cname::new(name(OWN)))).unwrap();
        assert_eq!(asked().reply(&round.finish()), DnsReply::Wrong(ALIASES.into()));
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let wrong = |record| match asked().reply(&answer(&[(OWN, record)])) {
            DnsReply::Wrong(why) => why,
            other => panic!("{other:?}"),
        };
        let port = wrong((0, 0, 0, "a.example."));
        assert!(port.contains("1 to 65535"), "{port}");
        let host = wrong((0, 0, 1, "a b.example."));
        assert!(host.contains("no name and no address"), "{host}");
        let many = |count| vec_of((OWN, (0, 0, 1, "a.")), count);
        assert!(matches!(asked().reply(&answer(&many(64))), DnsReply::Services(_)));
        for count in [65, 129] {
            let why = asked().reply(&answer(&many(count)));
            let says = format!("{count} ");
            assert!(matches!(&why, DnsReply::Wrong(why) if why.starts_with(&says)), "{why:?}");
        }
    }

    fn vec_of<T: Clone>(one: T, count: usize) -> Vec<T> {
        std::iter::repeat_n(one, count).collect()
    }

    #[test]
    fn what_answers_another_question_is_none() {
        let bytes = answer(&[(OWN, (0, 0, 1, "a."))]);
        let reply = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            asked().reply(&bytes)
        };
        assert!(matches!(reply(&|_| ()), DnsReply::Services(_)));
        assert_eq!(reply(&|bytes| bytes[1] = 8), DnsReply::Foreign, "another number");
        assert_eq!(reply(&|bytes| bytes[2] &= 0x7f), DnsReply::Foreign, "a question");
        assert_eq!(reply(&|bytes| bytes[14] = b'x'), DnsReply::Foreign, "another name");
        assert_eq!(reply(&|bytes| bytes[5] = 0), DnsReply::Foreign, "no question");
        assert_eq!(reply(&|bytes| bytes.truncate(11)), DnsReply::Foreign, "cut short");
        assert_eq!(reply(&|bytes| bytes[2] |= 2), DnsReply::Cut);
        assert_eq!(reply(&|bytes| bytes[3] |= 3), DnsReply::Nothing);
        assert_eq!(reply(&|bytes| bytes[3] |= 2), DnsReply::Failed("SERVFAIL".into()));
        let addresses = Question::new(7, OWN, RecordKind::V4).unwrap();
        assert_eq!(addresses.reply(&bytes), DnsReply::Foreign, "another type");
        assert!(Question::new(0, &"a".repeat(64), RecordKind::V4).is_err());
    }

    proptest! {
        // Any bytes behind the question are read without a panic, and give no more than is allowed.
        #[test]
        fn no_answer_does_more_than_is_allowed(
            behind in proptest::collection::vec(any::<u8>(), 0..600),
            count in 0u16..140,
            changes in proptest::collection::vec((0usize..700, any::<u8>()), 0..6),
        ) {
            let mut bytes = answer(&[(OWN, (0, 0, 1, "a.")), (OWN, (0, 0, 1, "b.c."))]);
            bytes.extend_from_slice(&behind);
            bytes[6..8].copy_from_slice(&count.to_be_bytes());
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            for kind in [RecordKind::Service, RecordKind::V4, RecordKind::V6] {
                let question = Question::new(7, OWN, kind).unwrap();
                match question.reply(&bytes) {
                    DnsReply::Services(found) => {
                        prop_assert!(kind == RecordKind::Service && found.len() <= PLACES_MAX);
                    }
                    DnsReply::Addresses(found) => {
                        prop_assert!(kind != RecordKind::Service && found.len() <= PLACES_MAX);
                    }
                    _ => {}
                }
            }
        }
    }
}
