//! The wire between the hosts, and its attacker: it starts near and far, each in a network
//! namespace of its own if this process is in one, and makes the cables.

use super::ends::{Begin, Done, FarOrder, LIMIT, NearOrder, PHRASE, Report, SERVICE, config, plug};
use super::relay::{Direction, PATIENCE, Relay, Trick};
use super::{Attempt, Told, actor_command, run as run_words};
use crate::actor::{Actor, Orders, Role};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::Access;
use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
use hamlyn_tools::perf::row;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a message.
const BYTES: usize = 64 << 10;
/// The time limit of a call that gets no answer.
const BRIEFLY: Duration = Duration::from_millis(300);
/// The cable to near: near's address, and the wire's, which near takes for the far host's.
const NEAR: [IpAddr; 2] = [IpAddr::V4(addr(1, 1)), IpAddr::V4(addr(1, 2))];
/// The cable to far: the wire's address, and far's.
const FAR: [IpAddr; 2] = [IpAddr::V4(addr(2, 1)), IpAddr::V4(addr(2, 2))];

const fn addr(net: u8, host: u8) -> core::net::Ipv4Addr {
    core::net::Ipv4Addr::new(10, 77, net, host)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Makes the hosts, and sends one message from near to far.
    Begin {
        directory: PathBuf,
        has_cables: bool,
    },
    Try(Attempt),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Begun {
    /// Facts about the first message.
    Hosts(Vec<(String, String)>),
    /// Namespaces for the hosts, or cables between them, are impossible: the reason.
    NoCables(String),
}

/// The actor.
pub fn run(mut orders: Orders) -> Result<()> {
    let mut wire: Option<Wire> = None;
    while let Some(order) = orders.next()? {
        match order {
            Order::Begin { directory, has_cables } => {
                let begun = match start_ends(has_cables) {
                    // A fault of the system. Every later failure would be ours.
                    Err(why) if has_cables => Ok(Begun::NoCables(format!("{why:#}"))),
                    ends => ends.and_then(|ends| {
                        let mut made = Wire::new(directory, has_cables, ends)?;
                        let lines = made.first_message()?;
                        wire = Some(made);
                        Ok(Begun::Hosts(lines))
                    }),
                };
                orders.answer(begun)?;
            }
            Order::Try(attempt) => {
                let wire = wire.as_mut().context("not begun");
                orders.answer(wire.and_then(|wire| wire.attempt(attempt)))?;
            }
        }
    }
    Ok(())
}

struct Wire {
    directory: PathBuf,
    near: Actor,
    far: Actor,
    /// The listener that near connects to.
    listener: TcpListener,
    far_at: SocketAddr,
    /// Near's bytes of a whole conversation.
    recorded: Vec<u8>,
}

/// Starts near and far, each in a namespace of its own and at the other end of a cable if
/// `has_cables`. They do not use Hamlyn yet.
fn start_ends(has_cables: bool) -> Result<(Actor, Actor)> {
    let before: &[&str] = if has_cables { &["unshare", "--net"] } else { &[] };
    let start = |role| Actor::start_command(&mut actor_command(before)?, role, Stdio::null());
    let (mut near, mut far) = (start(Role::Near)?, start(Role::Far)?);
    // They run, and so their namespaces exist.
    let () = near.ask(&NearOrder::Ready)?;
    let () = far.ask(&FarOrder::Ready)?;
    if has_cables {
        for (own, actor, address) in [("near", &near, NEAR[1]), ("far", &far, FAR[0])] {
            let pid = actor.pid();
            let line = format!("ip link add {own} type veth peer name cable netns {pid}");
            run_words(line.split(' ')).with_context(|| line.clone())?;
            plug(Some(address), own)?;
        }
    }
    Ok((near, far))
}

impl Wire {
    fn new(
        directory: PathBuf,
        has_cables: bool,
        (mut near, mut far): (Actor, Actor),
    ) -> Result<Self> {
        let cable = |address| has_cables.then_some(address);
        let begin = |address| Begin { directory: directory.clone(), cable: cable(address) };
        let () = near.ask(&NearOrder::Begin(begin(NEAR[0])))?;
        let far_at: SocketAddr = far.ask(&FarOrder::Begin(begin(FAR[1])))?;
        let own = cable(NEAR[1]).unwrap_or([127, 0, 0, 1].into());
        let listener = TcpListener::bind((own, 0)).context("the wire's own port")?;
        Ok(Self { directory, near, far, listener, far_at, recorded: Vec::new() })
    }

    fn first_message(&mut self) -> Result<Vec<(String, String)>> {
        let relay = self.relay()?;
        let path = self.connect()?.path;
        let done = self.call()?;
        let () = self.near.ask(&NearOrder::Leave)?;
        relay.end()?;
        let far: Report = self.far.ask(&FarOrder::Report)?;
        ensure!(far.requests == 1 && far.wrong == 0, "the first message did not arrive as sent");
        let pair = |name: &str, value: String| (name.to_owned(), value);
        Ok(vec![
            pair("message", format!("{BYTES} bytes from one to the other, and its digest back")),
            pair("round trip, the first", row::ns(done.ns as f64)),
            pair("path", path),
        ])
    }

    fn relay(&self) -> Result<Relay> {
        Relay::start(&self.listener, self.far_at)
    }

    /// Near connects, and has a link.
    fn connect(&mut self) -> Result<Done> {
        let done = self.connects()?;
        if let Some(error) = done.error {
            bail!("the client could not connect: {error}");
        }
        Ok(done)
    }

    fn connects(&mut self) -> Result<Done> {
        let at = self.listener.local_addr()?;
        self.near.ask(&NearOrder::Connect(at))
    }

    /// Near calls, and has the right answer.
    fn call(&mut self) -> Result<Done> {
        let done = self.calls()?;
        if let Some(error) = done.error {
            bail!("an honest call failed: {error}");
        }
        Ok(done)
    }

    fn calls(&mut self) -> Result<Done> {
        self.near.ask(&NearOrder::Call(BYTES, LIMIT.unwrap_or(PATIENCE)))
    }

    fn attempt(&mut self, attempt: Attempt) -> Result<Told> {
        let before = self.settled()?;
        let told = match attempt {
            Attempt::Read => self.read(),
            Attempt::ChangeGreeting => self.change_greeting(&before),
            Attempt::ChangeRequest => self.meddle(&before, Direction::ToFar, Trick::Change, 0),
            Attempt::ChangeReply => self.meddle(&before, Direction::ToNear, Trick::Change, 1),
            Attempt::SayTwice => self.meddle(&before, Direction::ToFar, Trick::Twice, 1),
            Attempt::LeaveOut => self.meddle(&before, Direction::ToFar, Trick::LeaveOut, 0),
            Attempt::Cut => self.meddle(&before, Direction::ToFar, Trick::Cut, 0),
            Attempt::Replay => self.replay(&before),
            Attempt::WrongSecret => self.wrong_secret(&before),
            Attempt::Impostor => self.impostor(),
        };
        let mut told = told?;
        // After every attempt the hosts go on, and the server never received wrong data.
        let relay = self.relay()?;
        self.connect().context("after it")?;
        self.call().context("after it")?;
        let () = self.near.ask(&NearOrder::Leave)?;
        relay.end()?;
        let after: Report = self.far.ask(&FarOrder::Report)?;
        if after.wrong > 0 {
            told.is_refused = false;
            told.detail = format!("{} requests that nobody sent were served", after.wrong);
        }
        Ok(told)
    }

    /// Far's counters once it has no links.
    fn settled(&mut self) -> Result<Report> {
        let end = Instant::now() + PATIENCE;
        loop {
            let now: Report = self.far.ask(&FarOrder::Report)?;
            if now.links == 0 {
                return Ok(now);
            }
            ensure!(Instant::now() < end, "far keeps a link that near has left");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn read(&mut self) -> Result<Told> {
        let relay = self.relay()?;
        self.connect()?;
        self.call()?;
        let () = self.near.ask(&NearOrder::Leave)?;
        let seen = relay.end()?;
        let part = &PHRASE[..12];
        let total = seen[0].len() + seen[1].len();
        let found = seen.iter().any(|seen| {
            [part, SERVICE.as_bytes()]
                .iter()
                .any(|secret| seen.windows(secret.len()).any(|window| window == *secret))
        });
        self.recorded = seen.into_iter().next().unwrap_or_default();
        // The attacker has seen at least as many bytes as the message has.
        ensure!(self.recorded.len() > BYTES, "the message did not pass the wire");
        Ok(Told {
            is_refused: !found,
            detail: if found {
                "the message, or the service's name, was readable".into()
            } else {
                format!("{total} bytes passed, and TLS 1.3 hides them; nor is the service's name")
            },
            counter: "(what passed)".into(),
        })
    }

    /// Waits until one of these counters of far has risen.
    fn rises(&mut self, before: &Report, counters: &[&str]) -> Result<(Option<String>, Report)> {
        let end = Instant::now() + PATIENCE;
        loop {
            let now: Report = self.far.ask(&FarOrder::Report)?;
            let risen = counters.iter().find_map(|name| {
                let rise = difference(&before.counters, &now.counters, name);
                (rise > 0).then(|| format!("{name} +{rise}"))
            });
            if risen.is_some() || Instant::now() > end {
                return Ok((risen, now));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn change_greeting(&mut self, before: &Report) -> Result<Told> {
        let relay = self.relay()?;
        relay.arm(Direction::ToFar, Trick::Change);
        let done = self.connects()?;
        let () = self.near.ask(&NearOrder::Leave)?;
        let refusals = ["control.hosts_refused_tls", "control.hosts_refused_unproved"];
        let (risen, after) = self.rises(before, &refusals)?;
        relay.cut_off();
        relay.end()?;
        let is_given = after.requests > before.requests;
        Ok(told(risen, done.error, is_given))
    }

    /// Orders an attack on the next record of a good link. The server may receive so many requests
    /// from then on.
    fn meddle(
        &mut self,
        before: &Report,
        direction: Direction,
        trick: Trick,
        given_max: u64,
    ) -> Result<Told> {
        let relay = self.relay()?;
        self.connect()?;
        self.call()?;
        relay.arm(direction, trick);
        let mut done = match trick {
            // Silence looks like a slow network; the next record shows the attack.
            Trick::LeaveOut => self.near.ask(&NearOrder::Call(BYTES, BRIEFLY))?,
            _ => self.calls()?,
        };
        let waits = matches!(trick, Trick::LeaveOut | Trick::Twice);
        let counters: &[&str] = match trick {
            // Every host on the path may cut a cable, so that breaks no rule.
            Trick::Cut => &["links_closed"],
            _ => &["links_closed_violation"],
        };
        // The first of two equal records is good. The next call comes after the violation that ends
        // the link, so the server must not receive it, and `given_max` does not include it.
        if waits && (done.error.is_none() || trick == Trick::LeaveOut) {
            done = self.calls()?;
        }
        let () = self.near.ask(&NearOrder::Leave)?;
        let (risen, after) = self.rises(before, counters)?;
        relay.cut_off();
        relay.end()?;
        // The first request is the one before the attack.
        let given = after.requests - before.requests;
        let mut told = told(risen, done.error, given > 1 + given_max);
        if trick == Trick::Cut && told.is_refused {
            // A client cannot tell a cut cable from a dead host, and its error names the latter.
            told.detail = String::new();
        }
        Ok(told)
    }

    fn replay(&mut self, before: &Report) -> Result<Told> {
        ensure!(!self.recorded.is_empty(), "nothing was recorded");
        let mut tcp = TcpStream::connect_timeout(&self.far_at, PATIENCE)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        // Far may end the connection before all bytes are sent.
        let _ = tcp.write_all(&self.recorded);
        let ended = tcp.read_to_end(&mut Vec::new());
        if let Err(error) = ended
            && matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        {
            bail!("far did not end the connection");
        }
        let (risen, after) = self.rises(before, &["control.hosts_refused_tls"])?;
        let is_given = after.requests > before.requests;
        Ok(told(risen, Some(String::new()), is_given))
    }

    fn wrong_secret(&mut self, before: &Report) -> Result<Told> {
        let manager = Manager::with_config(config(&self.directory, "wire", "other"))?;
        let name = format!("hamlyn://{}/{SERVICE}", self.far_at);
        let error = Client::connect(&manager, &name, LIMIT).err().map(|error| error.to_string());
        drop(manager);
        let refusals = ["control.hosts_refused_secret", "control.hosts_refused_unproved"];
        let (risen, after) = self.rises(before, &refusals)?;
        Ok(told(risen, error, after.requests > before.requests))
    }

    /// The attacker serves as a host itself, and near is led to it.
    fn impostor(&mut self) -> Result<Told> {
        let own = SocketAddr::new(self.listener.local_addr()?.ip(), 0);
        let config = config(&self.directory, "wire", "other").listen(own);
        let manager = Manager::with_config(config.clone())?;
        let server = Server::new(&manager, ServerConfig::default())?;
        server.serve(SERVICE, Access::SameUser)?;
        let at = manager.listens_at().context("he does not listen")?;
        let done: Done = self.near.ask(&NearOrder::Connect(at))?;
        let () = self.near.ask(&NearOrder::Leave)?;
        let is_given = server.try_receive()?.is_some() || server.clients() > 0;
        let named = done.error.as_ref().is_some_and(|error| error.contains("secret"));
        let counter = done.error.as_ref().map(|_| "(the client's error)".to_owned());
        Ok(told(counter.filter(|_| named), done.error, is_given))
    }
}

fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, name: &str) -> u64 {
    let of = |counters: &BTreeMap<String, u64>| counters.get(name).copied().unwrap_or(0);
    of(after).saturating_sub(of(before))
}

/// The result: the counter that rose, near's error, and whether the server received data that it
/// must not.
fn told(risen: Option<String>, error: Option<String>, is_given: bool) -> Told {
    let detail = match (&risen, &error, is_given) {
        (_, _, true) => "the server was given it".to_owned(),
        (_, None, _) => "the client noticed nothing".to_owned(),
        (None, Some(error), _) => format!("nothing was counted ({error})"),
        (Some(_), Some(error), _) => error.clone(),
    };
    let is_refused = risen.is_some() && error.is_some() && !is_given;
    Told { is_refused, detail, counter: risen.unwrap_or_else(|| "none".into()) }
}
