//! Services of other hosts whose names have no address: found in the DNS, or by a directory of the
//! program's own. The name server is this test's, on a port of its own.
#![cfg(not(miri))]

mod support;

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::name::Name;
use domain::base::{Message, MessageBuilder, Ttl};
use domain::rdata::{A, Srv};
use hamlyn::node::{
    ConnectError, Event, HostDirectory, HostDirectoryError, HostError, MeetingError, Place,
};
use hamlyn::protocol::{
    Client, GrowError, Manager, ReconnectPolicy, ReconnectingClient, Server, ServerConfig,
};
use hamlyn::{Accept, Access, Node};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use support::{Dir, LIMIT};

// ---- a name server

/// Its answer for a name and a type.
#[derive(Clone)]
enum Says {
    /// Priority, weight, port, target.
    Srv(Vec<(u16, u16, u16, &'static str)>),
    Address(Ipv4Addr),
    Addresses(Vec<Ipv4Addr>),
    Code(Rcode),
    /// The second, behind one that answers another question.
    Forged(Box<Says>, Box<Says>),
    /// By UDP that it does not fit.
    ByTcp(Box<Says>),
    /// Bytes behind the question, said to be one record.
    Noise(Vec<u8>),
    Nothing,
}

type Zone = Box<dyn FnMut(&str, Rtype) -> Says + Send>;

struct NameServer {
    at: SocketAddr,
    /// The names asked for, by UDP.
    asked: Arc<Mutex<Vec<String>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl NameServer {
    /// `zone` says what is answered of a name, in small letters.
    fn new(zone: impl FnMut(&str, Rtype) -> Says + Send + 'static) -> Self {
        // The same port for both.
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()) {
                break (udp, tcp);
            }
        };
        let at = udp.local_addr().unwrap();
        let zone: Arc<Mutex<Zone>> = Arc::new(Mutex::new(Box::new(zone)));
        let (asked, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let by_udp = {
            let (zone, asked, ends) = (zone.clone(), asked.clone(), ends.clone());
            move || {
                let mut bytes = [0; 512];
                while let Ok((length, from)) = udp.recv_from(&mut bytes) {
                    if ends.load(Ordering::Acquire) {
                        break;
                    }
                    let (name, said) = answers(&bytes[..length], &zone, false);
                    asked.lock().unwrap().push(name);
                    for message in said {
                        udp.send_to(&message, from).unwrap();
                    }
                }
            }
        };
        let by_tcp = {
            let ends = ends.clone();
            move || {
                while let Ok((mut tcp, _)) = tcp.accept() {
                    if ends.load(Ordering::Acquire) {
                        break;
                    }
                    let mut length = [0; 2];
                    tcp.read_exact(&mut length).unwrap();
                    let mut bytes = vec![0; u16::from_be_bytes(length).into()];
                    tcp.read_exact(&mut bytes).unwrap();
                    for message in answers(&bytes, &zone, true).1 {
                        let length = (message.len() as u16).to_be_bytes();
                        tcp.write_all(&[&length, &*message].concat()).unwrap();
                    }
                }
            }
        };
        let threads = vec![std::thread::spawn(by_udp), std::thread::spawn(by_tcp)];
        Self { at, asked, ends, threads }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[0], self.at).unwrap();
        drop(std::net::TcpStream::connect(self.at));
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn answers(question: &[u8], zone: &Mutex<Zone>, by_tcp: bool) -> (String, Vec<Vec<u8>>) {
    let question = Message::from_slice(question).unwrap();
    assert!(question.header().rd() && !question.header().qr());
    let asked = question.sole_question().unwrap();
    assert_eq!(asked.qclass(), Class::IN);
    let name = asked.qname().to_string().to_lowercase();
    let says = zone.lock().unwrap()(&name, asked.qtype());
    let says = match says {
        Says::ByTcp(says) if by_tcp => *says,
        says => says,
    };
    (name, messages(question, says))
}

fn messages(question: &Message<[u8]>, says: Says) -> Vec<Vec<u8>> {
    let asked = question.sole_question().unwrap();
    let mut code = Rcode::NOERROR;
    if let Says::Code(says) = says {
        code = says;
    }
    let mut answer = MessageBuilder::new_vec().start_answer(question, code).unwrap();
    let ttl = Ttl::from_secs(60);
    let owner = asked.qname();
    match says {
        Says::Srv(records) => {
            for (priority, weight, port, target) in records {
                let target: Name<Vec<u8>> = target.parse().unwrap();
                answer.push((owner, ttl, Srv::new(priority, weight, port, target))).unwrap();
            }
        }
        Says::Address(address) => answer.push((owner, ttl, A::new(address))).unwrap(),
        Says::Addresses(addresses) => {
            for address in addresses {
                answer.push((owner, ttl, A::new(address))).unwrap();
            }
        }
        Says::Code(_) => {}
        Says::Forged(forged, says) => {
            let mut all = messages(question, *forged);
            for message in &mut all {
                message[0] ^= 1;
            }
            all.extend(messages(question, *says));
            return all;
        }
        Says::ByTcp(_) => answer.header_mut().set_tc(true),
        Says::Noise(bytes) => {
            let mut message = answer.finish();
            message[7] = 1;
            message.extend_from_slice(&bytes);
            return vec![message];
        }
        Says::Nothing => return Vec::new(),
    }
    vec![answer.finish()]
}

// ---- two hosts

fn secret(dir: &Dir, digits: &str) -> PathBuf {
    dir.write("secret", digits.repeat(32))
}

/// A host that serves `double`, until it is dropped.
struct Host {
    dir: Dir,
    at: SocketAddr,
    _manager: Manager,
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn new(digits: &str) -> Self {
        Self::listening(digits, "127.0.0.1:0")
    }

    fn listening(digits: &str, at: &str) -> Self {
        let dir = Dir::new("named", &[]);
        let key = secret(&dir, digits);
        let listen = at.parse::<SocketAddr>().unwrap();
        let config = dir.config().secret(key).listen(listen);
        let manager = Manager::with_config(config).unwrap();
        let server = Arc::new(Server::new(&manager, ServerConfig::default()).unwrap());
        server.serve("double", Access::SameUser).unwrap();
        let serving = server.clone();
        let thread = std::thread::spawn(move || {
            while let Ok(request) = serving.receive(None) {
                let twice = request.repeat(2);
                request.reply(&twice, LIMIT).unwrap();
            }
        });
        let at = manager.listens_at().unwrap();
        Self { dir, at, _manager: manager, server, thread: Some(thread) }
    }

    fn key(&self) -> PathBuf {
        self.dir.path.join("secret")
    }

    fn port(&self) -> u16 {
        self.at.port()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.server.drain(Some(Duration::ZERO));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// A client's manager, with a directory.
fn manager(here: &Dir, key: &Path, directory: &str) -> Manager {
    let config = here.config_with(&[("DIRECTORY", directory)]).secret(key);
    Manager::with_config(config).unwrap()
}

fn in_dns(here: &Dir, key: &Path, server: &NameServer) -> Manager {
    manager(here, key, &format!("dns://{}/Example.test.", server.at))
}

fn doubles(client: &Client) {
    assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
}

const NAME: &str = "_double._tcp.example.test";

/// A port without a listener, which only root could open.
const CLOSED: u16 = 1;

fn error_of<T>(connected: Result<T, GrowError>) -> ConnectError {
    match connected.err().expect("an error") {
        GrowError::Connect(error) => error,
        other => panic!("{other}"),
    }
}

fn of_directory(error: ConnectError) -> HostDirectoryError {
    match error {
        ConnectError::Host { error: HostError::Directory(error), .. } => error,
        other => panic!("{other}"),
    }
}

// ---- the DNS

#[test]
fn a_service_is_found_by_its_srv_records_in_their_order() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let port = host.port();
    // Nothing is at those that are tried before; a host that has no address is passed over.
    let server = NameServer::new(move |name, rtype| match (name, rtype) {
        (NAME, Rtype::SRV) => Says::Srv(vec![
            (30, 0, port, "there.example.test"),
            (10, 5, CLOSED, "there.example.test"),
            (20, 0, port, "nowhere.example.test"),
        ]),
        ("there.example.test", Rtype::A) => Says::Address(Ipv4Addr::LOCALHOST),
        ("there.example.test", Rtype::AAAA) => Says::Srv(Vec::new()),
        ("nowhere.example.test", _) => Says::Code(Rcode::NXDOMAIN),
        asked => panic!("{asked:?}"),
    });
    let manager = in_dns(&here, &host.key(), &server);
    let client = Client::connect(&manager, "hamlyn://double", LIMIT).unwrap();
    doubles(&client);
    let asked = server.asked();
    let (there, nowhere) = ("there.example.test", "nowhere.example.test");
    assert_eq!(asked, [NAME, there, there, nowhere, nowhere, there, there]);
}

#[test]
fn a_name_server_that_answers_nothing_about_ipv6_hides_no_address_of_ipv4() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let port = host.port();
    for fails in [Says::Code(Rcode::SERVFAIL), Says::Noise(vec![1; 9])] {
        let server = NameServer::new(move |name, rtype| match (name, rtype) {
            (NAME, Rtype::SRV) => Says::Srv(vec![(1, 0, port, "there.example.test")]),
            ("there.example.test", Rtype::A) => Says::Address(Ipv4Addr::LOCALHOST),
            ("there.example.test", Rtype::AAAA) => fails.clone(),
            asked => panic!("{asked:?}"),
        });
        let manager = in_dns(&here, &host.key(), &server);
        doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
    }
}

#[test]
fn a_service_that_is_not_in_the_dns_yet_is_waited_for() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let (port, mut looks) = (host.port(), 0);
    let server = NameServer::new(move |name, rtype| match (name, rtype) {
        (NAME, Rtype::SRV) => {
            looks += 1;
            match looks {
                1 => Says::Code(Rcode::NXDOMAIN),
                2 => Says::Srv(Vec::new()),
                _ => Says::Srv(vec![(0, 0, port, "there.example.test")]),
            }
        }
        (_, Rtype::A) => Says::Address(Ipv4Addr::LOCALHOST),
        _ => Says::Srv(Vec::new()),
    });
    let manager = in_dns(&here, &host.key(), &server);
    doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
    // It says so when the time is up.
    let absent = NameServer::new(|_, _| Says::Code(Rcode::NXDOMAIN));
    let manager = in_dns(&here, &host.key(), &absent);
    let short = Some(Duration::from_millis(300));
    let error = of_directory(error_of(Client::connect(&manager, "hamlyn://double", short)));
    assert!(
        matches!(&error, HostDirectoryError::NoRecord(name) if name == "_double._tcp.Example.test")
    );
}

#[test]
fn a_target_that_is_the_root_means_that_there_is_no_such_service_and_nobody_waits() {
    let here = Dir::new("here", &[]);
    let server = NameServer::new(|_, _| Says::Srv(vec![(0, 0, 0, ".")]));
    let manager = in_dns(&here, &secret(&here, "7f"), &server);
    let error = of_directory(error_of(Client::connect(&manager, "hamlyn://double", LIMIT)));
    assert!(matches!(error, HostDirectoryError::NotAvailable(_)), "{error}");
    assert_eq!(server.asked(), [NAME]);
}

#[test]
fn an_answer_that_does_not_fit_is_asked_for_by_tcp() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let port = host.port();
    let server = NameServer::new(move |_, rtype| match rtype {
        Rtype::SRV => {
            let mut records = vec![(9, 0, CLOSED, "there.example.test"); 63];
            records.push((1, 0, port, "there.example.test"));
            Says::ByTcp(Box::new(Says::Srv(records)))
        }
        Rtype::A => Says::Address(Ipv4Addr::LOCALHOST),
        _ => Says::Srv(Vec::new()),
    });
    let manager = in_dns(&here, &host.key(), &server);
    doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
}

#[test]
fn of_more_addresses_than_a_service_may_have_some_of_each_place_are_tried() {
    let here = Dir::new("here", &[]);
    let server = NameServer::new(|name, rtype| match (name, rtype) {
        (NAME, Rtype::SRV) => {
            Says::Srv(["a.test", "b.test", "c.test"].map(|place| (0, 0, CLOSED, place)).to_vec())
        }
        (place, Rtype::A) => {
            let net = place.as_bytes()[0];
            Says::Addresses((1..=40).map(|last| Ipv4Addr::new(127, 0, net, last)).collect())
        }
        _ => Says::Srv(Vec::new()),
    });
    let manager = in_dns(&here, &secret(&here, "7f"), &server);
    let limit = Some(Duration::from_secs(1));
    let error = error_of(Client::connect(&manager, "hamlyn://double", limit)).to_string();
    // The first 16 are named: 64 in all.
    assert!(error.contains("127.0.97.1:1") && error.contains("and 48 others"), "{error}");
}

#[test]
fn what_answers_another_question_is_passed_over() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let port = host.port();
    let server = NameServer::new(move |_, rtype| match rtype {
        Rtype::SRV => {
            let forged = Says::Srv(vec![(0, 0, 0, ".")]);
            let right = Says::Srv(vec![(0, 0, port, "there.example.test")]);
            Says::Forged(Box::new(forged), Box::new(right))
        }
        Rtype::A => Says::Address(Ipv4Addr::LOCALHOST),
        _ => Says::Srv(Vec::new()),
    });
    let manager = in_dns(&here, &host.key(), &server);
    doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
}

#[test]
fn each_way_in_which_the_dns_does_not_answer_is_told() {
    let here = Dir::new("here", &[]);
    let key = secret(&here, "7f");
    let error = |says: Says, limit| {
        let server = NameServer::new(move |_, _| says.clone());
        let manager = in_dns(&here, &key, &server);
        error_of(Client::connect(&manager, "hamlyn://double", limit))
    };
    let of = |says| of_directory(error(says, LIMIT));
    // Each server is asked as often as resolv.conf(5) has it.
    let failed = of(Says::Code(Rcode::SERVFAIL));
    let text = failed.to_string();
    assert!(matches!(failed, HostDirectoryError::Unanswered { .. }), "{text}");
    assert!(text.contains("SERVFAIL") && text.contains("127.0.0.1:"), "{text}");
    for (says, why) in [
        (Says::Srv(vec![(0, 0, 1, "a."); 65]), "65 places"),
        (Says::Srv(vec![(0, 0, 0, "a.")]), "1 to 65535"),
        (Says::Srv(vec![(0, 0, 1, "a b.")]), "no name and no address"),
        // A name that leads to itself, and a record that ends before it should.
        (Says::Noise(vec![0xc0, 30, 0, 33, 0, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0]), ""),
        (Says::Noise(vec![0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 0, 0, 7, 0, 0]), ""),
        (Says::Noise(vec![0xff; 400]), ""),
    ] {
        let error = of(says);
        let text = error.to_string();
        assert!(matches!(error, HostDirectoryError::Answer { .. }), "{text}");
        assert!(text.contains(NAME.split('.').next().unwrap()) && text.contains(why), "{text}");
    }
    // The time limit is over before the server is given up.
    let late = error(Says::Nothing, Some(Duration::from_millis(200)));
    let is_known = match &late {
        ConnectError::TimedOut(_) => true,
        ConnectError::Host { error: HostError::Directory(error), .. } => {
            matches!(error, HostDirectoryError::Unanswered { .. })
        }
        _ => false,
    };
    assert!(is_known, "{late}");
}

#[test]
fn a_service_whose_name_is_no_label_is_refused_before_anybody_is_asked() {
    let here = Dir::new("here", &[]);
    let server = NameServer::new(|_, _| Says::Nothing);
    let manager = in_dns(&here, &secret(&here, "7f"), &server);
    let error = of_directory(error_of(Client::connect(&manager, "hamlyn://a.b", LIMIT)));
    assert!(matches!(error, HostDirectoryError::NoLabel { .. }), "{error}");
    assert!(server.asked().is_empty());
}

#[test]
fn a_lying_name_server_leads_to_no_host_that_has_not_the_keys() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let port = host.port();
    let server = NameServer::new(move |_, rtype| match rtype {
        Rtype::SRV => Says::Srv(vec![(0, 0, port, "there.example.test")]),
        Rtype::A => Says::Address(Ipv4Addr::LOCALHOST),
        _ => Says::Srv(Vec::new()),
    });
    let manager = in_dns(&here, &secret(&here, "80"), &server);
    let error = error_of(Client::connect(&manager, "hamlyn://double", LIMIT));
    let is_refused =
        matches!(error, ConnectError::Host { error: HostError::Meeting(MeetingError::Secret), .. });
    assert!(is_refused, "{error}");
}

// ---- a directory of the program's own

struct Function<F>(F);

type Looked = Result<Vec<Place>, Box<dyn Error + Send + Sync>>;

impl<F: Fn(&str, Option<Duration>) -> Looked + Send + Sync> HostDirectory for Function<F> {
    fn look_up(&self, service: &str, timeout: Option<Duration>) -> Looked {
        (self.0)(service, timeout)
    }
}

fn given(look_up: impl Fn(&str, Option<Duration>) -> Looked + Send + Sync + 'static) -> Given {
    Some(Arc::new(Function(look_up)))
}

type Given = Option<Arc<dyn HostDirectory>>;

#[test]
fn a_directory_of_the_programs_own_takes_the_place_of_the_setting() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let manager = manager(&here, &host.key(), "/nowhere/at/all");
    let at = host.at.to_string();
    let looks = Mutex::new(0);
    let look_up = move |service: &str, timeout: Option<Duration>| -> Looked {
        assert_eq!(service, "double");
        assert!(timeout.is_some_and(|left| Some(left) <= LIMIT));
        let mut looks = looks.lock().unwrap();
        *looks += 1;
        // Not there yet; then behind a place at which nothing is.
        if *looks == 1 { Ok(Vec::new()) } else { Ok(vec!["127.0.0.1:1".parse()?, at.parse()?]) }
    };
    manager.set_directory(given(look_up)).unwrap();
    doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
    manager.set_directory(None).unwrap();
    let error = error_of(Client::connect(&manager, "hamlyn://double", LIMIT)).to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[test]
fn a_directory_that_fails_or_panics_or_is_slow_ends_one_attempt_alone() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let manager = Manager::with_config(here.config().secret(host.key())).unwrap();
    let connect = |limit| Client::connect(&manager, "hamlyn://double", limit);
    manager.set_directory(given(|_, _| Err("the catalogue is shut".into()))).unwrap();
    let error = error_of(connect(LIMIT)).to_string();
    assert!(error.contains("own directory: the catalogue is shut"), "{error}");
    manager.set_directory(given(|_, _| panic!("this is meant to happen"))).unwrap();
    let error = error_of(connect(LIMIT)).to_string();
    assert!(error.contains("it panicked: this is meant to happen"), "{error}");
    // It is in there until the test lets it go.
    let (let_go, waits) = channel::<()>();
    let (tells, ended) = channel();
    let (waits, tells) = (Mutex::new(waits), Mutex::new(tells));
    let slow = move |_: &str, _: Option<Duration>| -> Looked {
        let _ = waits.lock().unwrap().recv();
        tells.lock().unwrap().send(()).unwrap();
        Err("too late".into())
    };
    manager.set_directory(given(slow)).unwrap();
    let error = error_of(connect(Some(Duration::from_millis(200))));
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
    let at = host.at.to_string();
    manager.set_directory(given(move |_, _| Ok(vec![at.parse()?]))).unwrap();
    doubles(&connect(LIMIT).unwrap());
    drop(let_go);
    ended.recv_timeout(LIMIT.unwrap()).unwrap();
    doubles(&connect(LIMIT).unwrap());
}

// ---- names and addresses

#[test]
fn a_host_whose_name_has_an_underscore_is_connected_to() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let port = host.port();
    let server = NameServer::new(move |_, rtype| match rtype {
        Rtype::SRV => Says::Srv(vec![(0, 0, port, "my_host.example.test")]),
        Rtype::A => Says::Address(Ipv4Addr::LOCALHOST),
        _ => Says::Srv(Vec::new()),
    });
    let manager = in_dns(&here, &host.key(), &server);
    doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
}

#[test]
fn the_scheme_is_read_in_letters_of_either_case_and_another_is_told() {
    let host = Host::new("7f");
    let here = Dir::new("here", &[]);
    let manager = manager(&here, &host.key(), "");
    let at = host.at;
    doubles(&Client::connect(&manager, &format!("HAMLYN://{at}/double"), LIMIT).unwrap());
    for (name, why) in [
        (format!("tcp://{at}/double"), "nothing is connected to by tcp://"),
        (format!("{at}/double"), "hamlyn://host:port/service"),
        (format!("hamlyn://2130706433:{}/double", at.port()), "four numbers from 0 to 255"),
        (format!("hamlyn://[fe80::1]:{}/double", at.port()), "[fe80::1%eth0]"),
        (format!("hamlyn://[fe80::1%nowhere]:{}/double", at.port()), "no interface of this host"),
    ] {
        let error = error_of(Client::connect(&manager, &name, LIMIT)).to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

// In a network of its own, which has such an address.
#[test]
fn a_link_local_address_is_connected_to_by_its_interface() {
    let inside = || {
        // SAFETY: a system call by which this thread, and those that it starts, are in another network.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
        for line in ["link set lo up", "addr add fe80::7/64 dev lo nodad"] {
            let output = std::process::Command::new("ip").args(line.split(' ')).output();
            let output = output.map_err(|e| format!("ip: {e}"))?;
            if !output.status.success() {
                return Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        let host = Host::listening("7f", "[fe80::7%1]:0");
        let here = Dir::new("here", &[]);
        let manager = manager(&here, &host.key(), "");
        for interface in ["lo", "1"] {
            let name = format!("hamlyn://[fe80::7%{interface}]:{}/double", host.port());
            doubles(&Client::connect(&manager, &name, LIMIT).unwrap());
        }
        Ok(())
    };
    if let Err(why) = std::thread::spawn(inside).join().unwrap() {
        support::skipped(&format!("no network of its own, or no link-local address in it: {why}"));
    }
}

// ---- several places

/// Long enough for a handshake on a machine that is kept busy, in each share of it.
const SHARED: Option<Duration> = Some(Duration::from_secs(12));

/// A file that says where `double` is.
fn listed(here: &Dir, places: &[SocketAddr]) -> String {
    let file = here.path.join("directory");
    let places: Vec<_> = places.iter().map(ToString::to_string).collect();
    std::fs::write(&file, format!("double {}\n", places.join(" "))).unwrap();
    file.display().to_string()
}

/// A stopped process: its kernel takes connections, and it is silent.
fn stopped() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// A host that serves nothing.
fn idle(digits: &str) -> (Dir, Manager, SocketAddr) {
    let dir = Dir::new("idle", &[]);
    let key = secret(&dir, digits);
    let listen = "127.0.0.1:0".parse::<SocketAddr>().unwrap();
    let manager = Manager::with_config(dir.config().secret(key).listen(listen)).unwrap();
    let at = manager.listens_at().unwrap();
    (dir, manager, at)
}

/// A node, and where it is.
fn node(digits: &str) -> (Dir, Node, SocketAddr) {
    let dir = Dir::new("node", &[("HANDSHAKE_TIMEOUT_MS", "40000")]);
    let key = secret(&dir, digits);
    let listen = "127.0.0.1:0".parse::<SocketAddr>().unwrap();
    let node = Node::with_config(dir.config().secret(key).listen(listen)).unwrap();
    let at = node.listens_at().unwrap();
    (dir, node, at)
}

/// The same, and asks its program about clients of `double`.
fn asks(digits: &str) -> (Dir, Node, SocketAddr) {
    let (dir, mut node, at) = node(digits);
    node.serve("double", Access::SameUser, Accept::Ask).unwrap();
    (dir, node, at)
}

/// Connects in a thread, where these are the places.
fn connecting(places: &[SocketAddr]) -> JoinHandle<(Dir, Node, hamlyn::LinkId)> {
    let here = Dir::new("here", &[]);
    let config = here.config_with(&[("DIRECTORY", &listed(&here, places))]);
    let config = config.secret(secret(&here, "7f"));
    std::thread::spawn(move || {
        let mut node = Node::with_config(config).unwrap();
        let link = node.connect("hamlyn://double", b"", SHARED).unwrap();
        (here, node, link)
    })
}

fn event_of<T>(node: &mut Node, what: &str, is_it: impl Fn(&Event) -> Option<T>) -> T {
    let mut found = None;
    support::until_node(node, what, |node| {
        while let Some(event) = node.next_event() {
            found = found.take().or_else(|| is_it(&event));
        }
        found.is_some()
    });
    found.unwrap()
}

fn request(event: &Event) -> Option<hamlyn::RequestId> {
    if let Event::Request { id, .. } = event { Some(*id) } else { None }
}

#[test]
fn a_place_that_is_stopped_leaves_time_for_the_next() {
    let host = Host::new("7f");
    let (_listener, dead) = stopped();
    let here = Dir::new("here", &[]);
    let directory = listed(&here, &[dead, host.at]);
    let manager = manager(&here, &host.key(), &directory);
    doubles(&Client::connect(&manager, "hamlyn://double", SHARED).unwrap());
    let policy = ReconnectPolicy { attempt_limit: SHARED.unwrap() / 2, ..Default::default() };
    let client = ReconnectingClient::connect(&manager, "hamlyn://double", policy, SHARED).unwrap();
    assert_eq!(*client.call(b"ab", LIMIT).unwrap(), *b"abab");
}

#[test]
fn a_place_that_does_not_serve_the_name_or_has_other_keys_is_passed_over() {
    let host = Host::new("7f");
    let (_idle, _manager, absent) = idle("7f");
    let (_other, _manager_of_others, other) = idle("80");
    // Another program's port: it ends each connection at once.
    let (listener, foreign) = stopped();
    let ends = Arc::new(AtomicBool::new(false));
    let accepting = {
        let ends = ends.clone();
        std::thread::spawn(move || {
            while !ends.load(Ordering::Acquire) {
                drop(listener.accept().unwrap());
            }
        })
    };
    let here = Dir::new("here", &[]);
    for first in [absent, other, foreign] {
        let directory = listed(&here, &[first, host.at]);
        let manager = manager(&here, &host.key(), &directory);
        doubles(&Client::connect(&manager, "hamlyn://double", LIMIT).unwrap());
    }
    ends.store(true, Ordering::Release);
    drop(std::net::TcpStream::connect(foreign));
    accepting.join().unwrap();
}

#[test]
fn where_all_places_fail_each_is_named_and_the_error_is_the_one_that_says_most() {
    let (_idle, _manager, absent) = idle("7f");
    let (_other, _manager_of_others, other) = idle("80");
    let (_listener, dead) = stopped();
    let here = Dir::new("here", &[]);
    let key = secret(&here, "7f");
    let closed = nobody();
    let connect = |places: &[SocketAddr]| {
        let manager = manager(&here, &key, &listed(&here, places));
        let limit = Some(Duration::from_secs(3));
        error_of(Client::connect(&manager, "hamlyn://double", limit))
    };
    let secret = MeetingError::Secret;
    for (places, wanted) in [
        (&[other, closed, absent][..], secret.clone()),
        (&[other, dead], secret.clone()),
        (&[closed, other], secret),
        (&[absent, closed], MeetingError::NoService),
    ] {
        let error = connect(places);
        let text = error.to_string();
        let ConnectError::Host { error, .. } = error else { panic!("{text}") };
        let HostError::Meeting(said) = error.telling() else { panic!("{text}") };
        assert_eq!(*said, wanted, "{text}");
        for place in places {
            assert!(text.contains(&place.to_string()), "{place}: {text}");
        }
    }
    let error = connect(&[dead, closed]).to_string();
    assert!(error.contains(&dead.to_string()), "{error}");
    // No packet came from either.
    let error = connect(&[dead, dead]);
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error}");
}

// The service was found, and has decided.
#[test]
fn a_place_whose_program_says_no_ends_the_attempt() {
    let (_dir, mut node, at) = asks("7f");
    let (listener, other) = stopped();
    listener.set_nonblocking(true).unwrap();
    let here = Dir::new("here", &[]);
    let key = secret(&here, "7f");
    let directory = listed(&here, &[at, other]);
    let connecting = std::thread::spawn(move || {
        let manager = manager(&here, &key, &directory);
        Client::connect(&manager, "hamlyn://double", LIMIT).err().unwrap()
    });
    let id = event_of(&mut node, "it is asked", request);
    node.refuse(id, "not you").unwrap();
    let error = connecting.join().unwrap();
    assert!(matches!(&error, GrowError::Refused(why) if why == "not you"), "{error}");
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_place_that_does_not_decide_is_let_go_and_the_next_is_asked() {
    let (_dir, mut node, at) = asks("7f");
    let (_other, mut next, then) = asks("7f");
    let connecting = connecting(&[at, then]);
    let first = event_of(&mut node, "it is asked", request);
    let second = event_of(&mut next, "the next is asked", request);
    next.accept(second, b"").unwrap();
    let (_here, client, _link) = connecting.join().unwrap();
    let gone = |event: &Event| matches!(event, Event::RequestGone { .. }).then_some(());
    event_of(&mut node, "it is let go", gone);
    assert!(node.accept(first, b"").is_err());
    assert_eq!((client.links().count(), node.links().count()), (1, 0));
}

#[test]
fn the_last_place_has_the_time_that_is_left_to_decide() {
    let (_dir, mut node, at) = asks("7f");
    // Which may listen in the next round, and so has a share.
    let connecting = connecting(&[nobody(), at]);
    let asked = event_of(&mut node, "it is asked", request);
    std::thread::sleep(SHARED.unwrap() * 6 / 10);
    node.accept(asked, b"").unwrap();
    let (_here, client, _link) = connecting.join().unwrap();
    assert_eq!(client.links().count(), 1);
}

fn nobody() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], CLOSED))
}

#[test]
fn a_name_that_no_place_serves_yet_is_waited_for_at_all_of_them() {
    let (_listener, dead) = stopped();
    let (_other, _manager, other) = idle("80");
    let (_dir, mut later, at) = node("7f");
    let connecting = connecting(&[at, other, dead]);
    support::until_node(&mut later, "it is asked", |node| {
        let mut counters = node.counters().into_iter();
        counters.any(|row| row.0 == "control.hosts_refused_service" && row.1 > 0)
    });
    later.serve("double", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    let connected = |event: &Event| matches!(event, Event::Connected { .. }).then_some(());
    event_of(&mut later, "there is a link", connected);
    connecting.join().unwrap();
}
