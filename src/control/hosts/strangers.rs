//! Connections that have proved nothing: accepted at once, answered in turn.
//!
//! ```text
//!   listener --take_connections--> Came --heard--> due --serve_strangers--> Meeting --look--> proved
//!                                                   ^---------heard------------'
//! ```
//! Answering the first message of TLS takes this thread much longer than replaying a recorded one
//! takes an attacker. So this thread accepts all connections that wait at the port, which is cheap,
//! and in each turn processes the bytes of one stranger of each site, however many that site has:
//! an honest host waits for one answer to each other site, and a host that has proved itself for no
//! more than one turn. `admission` decides the accounts, the turns, and which connection gives way.
//!
//! Never: a stranger's bytes are processed as they come; a silent stranger costs more than its
//! descriptor.

use super::admission::{BegunStrangers, StrangerAccount, Strangers};
use super::dial::prepare;
use super::meeting::Meeting;
use super::{EVENTS_MAX, HostRow, HostsShared, HostsState, LISTENER, Met, Refused};
use crate::os::sys::monotonic_ns;
use crate::os::tcp;
use crate::transport::channel::Channel;
use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::vec::Vec;

/// Connections to accept before anything else.
const ACCEPTS_PER_TURN: usize = 128;
/// Sites of which one stranger each is processed in a turn.
const STRANGERS_PER_TURN: usize = 16;
/// The pause before the listener accepts again after the process ran out of descriptors.
const LISTEN_PAUSE_NS: u64 = 100_000_000;

/// An accepted connection that has sent nothing, or nothing that was processed.
pub(super) struct Came {
    pub tcp: TcpStream,
    pub address: SocketAddr,
    pub account: StrangerAccount,
    pub deadline_ns: u64,
    /// It has sent something, and waits for its turn.
    pub is_due: bool,
}

impl HostsShared {
    /// Accepts the connections that wait at the port.
    pub(super) fn take_connections(&self, state: &mut HostsState) {
        let Some(listener) = &self.listener else { return };
        let (mut came, mut strangers) = (Vec::new(), state.strangers().collect::<Strangers>());
        let mut accounts = HashMap::new();
        for _ in 0..ACCEPTS_PER_TURN {
            let (tcp, address) = match tcp::accept(listener) {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The client has gone again.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    // No descriptor, or no memory: without the pause the listener would be polled
                    // without end.
                    self.count_refused(Refused::Exhausted);
                    let _ = self.poller.pause(listener, LISTENER);
                    state.listens_again_ns = Some(monotonic_ns() + LISTEN_PAUSE_NS);
                    break;
                }
            };
            if self.is_ending.load(Ordering::Acquire) {
                continue;
            }
            if self.inbox.len() >= EVENTS_MAX {
                self.count_refused(Refused::Exhausted);
                continue;
            }
            let mut of = address;
            of.set_port(0);
            let account = *accounts.entry(of).or_insert_with(|| (self.account_of)(address));
            let one = Came { tcp, address, account, deadline_ns: self.deadline(), is_due: false };
            came.push(self.let_in(state, &mut strangers, one));
        }
        for id in came {
            let Some(HostRow::Came(came)) = state.rows.get(&id) else { continue };
            // Once: the poller reports it no more until its turn has come.
            if self.poller.add_once(&came.tcp, id).is_err() {
                self.count_refused(Refused::Exhausted);
                state.rows.remove(&id);
            }
        }
    }

    /// Bytes have come over a connection: a stranger's wait for its turn.
    pub(super) fn heard(self: &Arc<Self>, state: &mut HostsState, id: u64) {
        match state.rows.get_mut(&id) {
            Some(HostRow::Came(came)) => came.is_due = true,
            Some(HostRow::Meeting(met)) if met.is_stranger() => met.is_due = true,
            _ => self.look(state, id),
        }
    }

    /// Processes strangers: one of each site, and of many sites some in turn.
    pub(super) fn serve_strangers(self: &Arc<Self>, state: &mut HostsState) {
        let all: Vec<_> = state.strangers().collect();
        for id in state.strangers_turns.next(&all, monotonic_ns(), STRANGERS_PER_TURN) {
            match state.rows.get_mut(&id) {
                Some(HostRow::Came(_)) => self.begin(state, id),
                Some(HostRow::Meeting(met)) => {
                    met.is_due = false;
                    self.look(state, id);
                }
                _ => {}
            }
        }
    }

    /// The time of the next turn of a stranger that has sent something.
    pub(super) fn strangers_due_ns(&self, state: &HostsState) -> u64 {
        if !state.strangers().any(|stranger| stranger.is_due) {
            return u64::MAX;
        }
        let begun: BegunStrangers = state.strangers().collect();
        let due = state.strangers().filter(|stranger| stranger.is_due);
        due.map(|stranger| begun.turn_ns(&stranger)).min().unwrap_or(u64::MAX)
    }

    /// Begins TLS with a stranger that has sent something.
    fn begin(self: &Arc<Self>, state: &mut HostsState, id: u64) {
        let Some(HostRow::Came(came)) = state.rows.remove(&id) else { return };
        let Came { tcp, address, account, deadline_ns, .. } = came;
        self.make_room_for_one(state, account);
        let tls = rustls::ServerConnection::new(self.own.keys.server.clone());
        let (Ok(tls), Ok(())) = (tls, prepare(&tcp, &self.config)) else {
            return self.count_refused(Refused::Exhausted);
        };
        let meeting = Meeting::of_server(Channel::new(tcp, tls.into()));
        let (began_ns, account, is_due) = (monotonic_ns(), Some(account), false);
        let (dial, wants) = (None, None);
        let met = Met { meeting, address, account, began_ns, deadline_ns, dial, is_due, wants };
        state.rows.insert(id, HostRow::Meeting(Box::new(met)));
        self.look(state, id);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::super::admission::{MAY_TAKE_NS, StrangerAccount};
    use super::super::near::{Sought, WhenEnded};
    use super::super::{Happened, HostRow, HostsShared, Keys, OnThisHost, Refused, tcp};
    use crate::config::Config;
    use crate::control::identity::Identity;
    use crate::control::shell::{ConnectError, Inbox, LinkToken};
    use crate::os::memory::ForkGuard;
    use crate::transport::path::Path;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
    use std::os::unix::fs::OpenOptionsExt;
    use std::string::String;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use std::vec::Vec;

    const HONEST: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

    struct NobodyHere;

    impl OnThisHost for NobodyHere {
        fn begin(&self, _: Sought, _: WhenEnded) -> Result<LinkToken, ConnectError> {
            unreachable!("nobody of this host is looked for")
        }

        fn figures(&self) -> String {
            String::new()
        }

        fn give_up(&self, _: LinkToken) {}
    }

    /// A listening host whose turns the test makes, and the connections whose first message it has
    /// answered.
    struct There {
        shared: Arc<HostsShared>,
        at: SocketAddr,
        /// A client's first message.
        hello: Vec<u8>,
        made_room: Arc<AtomicUsize>,
        answered: BTreeSet<(IpAddr, u64)>,
        turns: usize,
        _dir: tempfile::TempDir,
    }

    impl There {
        fn new(half_open_max: u32) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let secret = dir.path().join("secret");
            let mut options = std::fs::OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(&secret);
            file.unwrap().write_all("7f".repeat(32).as_bytes()).unwrap();
            let config = Config::default().dir(dir.path()).secret(secret);
            let name = "localhost".try_into().unwrap();
            let keys = Keys::load(&config).unwrap();
            let mut client = rustls::ClientConnection::new(keys.client.clone(), name).unwrap();
            let mut hello = Vec::new();
            client.write_tls(&mut hello).unwrap();

            let config = config.listen(SocketAddr::from((HONEST, 0))).half_open_max(half_open_max);
            let config = config.handshake_timeout_ms(600_000u32);
            let inbox = Arc::new(Inbox::new(ForkGuard::new().unwrap()).unwrap());
            let made_room = Arc::new(AtomicUsize::new(0));
            let counted = made_room.clone();
            let note = Arc::new(move |what: Happened, _| {
                if matches!(what, Happened::Refused(Refused::HalfOpen)) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            let identity = Identity::new().unwrap();
            let told = (Arc::new(NobodyHere) as Arc<dyn OnThisHost>, note as _);
            let mut shared =
                HostsShared::new(&config, &identity, &inbox, &Arc::default(), told).unwrap();
            // The test runs on one host, whose addresses stand for those of others.
            shared.account_of = |address| {
                let IpAddr::V4(v4) = address.ip() else { unreachable!("it listens at IPv4") };
                StrangerAccount::of(Ipv4Addr::from_bits(v4.to_bits() | 128 << 24).into(), false)
            };
            let at = tcp::listens_at(shared.listener.as_ref().unwrap()).unwrap();
            Self {
                shared: Arc::new(shared),
                at,
                hello,
                made_room,
                answered: BTreeSet::new(),
                turns: 0,
                _dir: dir,
            }
        }

        /// Connects from an address and sends the first message; returns once it has arrived.
        fn is_met_from(&self, address: Ipv4Addr) -> TcpStream {
            let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&fd, &SocketAddr::from((address, 0))).unwrap();
            let tcp = TcpStream::from(fd);
            tcp.set_nonblocking(true).unwrap();
            let _ = connect(&tcp, &self.at);
            let wait = |what: &str, is_so: &dyn Fn() -> bool| {
                let end = Instant::now() + Duration::from_secs(20);
                while !is_so() {
                    assert!(Instant::now() < end, "{what}");
                    std::thread::sleep(Duration::from_micros(100));
                }
            };
            wait("nobody more may wait at the port", &|| tcp.peer_addr().is_ok());
            (&tcp).write_all(&self.hello).unwrap();
            wait("it does not arrive", &|| tcp::unacknowledged(&tcp) == 0);
            tcp
        }

        fn turn(&mut self) {
            let mut ready = Vec::new();
            self.shared.poller.wait(Some(0), &mut ready).unwrap();
            self.shared.turn(&ready);
            self.turns += 1;
            for (id, row) in &self.shared.lock().rows {
                if let HostRow::Meeting(met) = row
                    && met.meeting.channel.received() > 0
                {
                    self.answered.insert((met.address.ip(), *id));
                }
            }
        }

        fn answered(&self, address: Ipv4Addr) -> usize {
            self.answered.iter().filter(|answered| answered.0 == address).count()
        }

        /// Makes turns until a connection from this address is answered.
        fn answers(&mut self, address: Ipv4Addr) {
            while self.answered(address) == 0 {
                assert!(self.turns < 1000, "it is not answered");
                self.turn();
            }
        }
    }

    // An answer costs far more than replaying a hello.
    #[test]
    fn an_address_that_says_one_hello_behind_another_has_one_answer_a_turn() {
        let mut there = There::new(256);
        let attackers: Vec<_> = (0..60).map(|_| there.is_met_from(ATTACKER)).collect();
        let _honest = there.is_met_from(HONEST);
        there.answers(HONEST);
        let (answered, turns) = (there.answered(ATTACKER), there.turns);
        assert!(answered <= turns, "{answered} were answered before it, in {turns} turns");
        assert!(turns < 10, "{turns}");
        drop(attackers);
    }

    #[test]
    fn those_beyond_what_may_wait_are_sent_away_without_an_answer_and_no_other_address_is() {
        let mut there = There::new(20);
        let attackers: Vec<_> = (0..60).map(|_| there.is_met_from(ATTACKER)).collect();
        let _honest = there.is_met_from(HONEST);
        there.answers(HONEST);
        let (answered, turns) = (there.answered(ATTACKER), there.turns);
        assert!(answered <= turns, "{answered} were answered before it, in {turns} turns");
        assert_eq!(there.made_room.load(Ordering::Relaxed), 41);
        drop(attackers);
    }

    #[test]
    fn an_address_has_sixteen_that_were_answered_and_the_others_wait_until_those_are_old() {
        let mut there = There::new(256);
        let clients: Vec<_> = (0..20).map(|_| there.is_met_from(ATTACKER)).collect();
        let began = crate::os::sys::monotonic_ns();
        while there.turns < 100 {
            there.turn();
        }
        let is_early = |now_ns: u64| now_ns < began + MAY_TAKE_NS;
        if is_early(crate::os::sys::monotonic_ns()) {
            assert_eq!(there.answered(ATTACKER), 16);
            assert_eq!(there.made_room.load(Ordering::Relaxed), 0);
            // Meanwhile the thread waits.
            let due_ns = there.shared.strangers_due_ns(&there.shared.lock());
            assert!(due_ns >= began + MAY_TAKE_NS && due_ns < u64::MAX);
        }
        for row in there.shared.lock().rows.values_mut() {
            if let HostRow::Meeting(met) = row {
                met.began_ns = 0;
            }
        }
        while there.answered(ATTACKER) < 20 {
            assert!(there.turns < 1000, "they are not all answered");
            there.turn();
        }
        assert_eq!(there.made_room.load(Ordering::Relaxed), 4);
        drop(clients);
    }

    // Each user of the host can use all of its addresses.
    #[test]
    fn addresses_of_loopback_are_one_account_however_many_connect_from_them() {
        let mut there = There::new(256);
        Arc::get_mut(&mut there.shared).unwrap().account_of = HostsShared::account_of;
        let address = |i: u8| Ipv4Addr::new(127, 1, i, 1);
        let clients: Vec<_> = (0..60).map(|i| there.is_met_from(address(i))).collect();
        while there.turns < 5 {
            there.turn();
            assert!(there.answered.len() <= there.turns, "{:?}", there.answered);
        }
        let accounts: BTreeSet<_> =
            there.shared.lock().strangers().map(|stranger| stranger.account).collect();
        assert_eq!(accounts.len(), 1);
        drop(clients);
    }

    // A client that the system turns away tries again a second later.
    #[test]
    fn many_more_than_a_hundred_may_connect_before_the_thread_looks() {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        if most.trim().parse::<u32>().unwrap() < 200 {
            std::eprintln!("skipped: the system lets fewer than 200 wait (net.core.somaxconn)");
            return;
        }
        let mut there = There::new(256);
        let connected: Vec<_> = (0..150).map(|_| there.is_met_from(ATTACKER)).collect();
        let _honest = there.is_met_from(HONEST);
        there.answers(HONEST);
        assert!(there.answered(ATTACKER) <= there.turns);
        drop(connected);
    }
}
