//! The kind of link for the tests of the protocols: the rings of one host, unless
//! `HAMLYN_TEST_OVER` says `tls`, `tls-two-rails`, `libfabric` or `libfabric-two-rails`. Then each
//! manager and each node has a host of its own: its own directory, and the secret that all hosts of
//! the test have. A name is looked up in all directories of the test.
//!
//! ```text
//!   test's directory --+-- secret
//!                      +-- 7-0 --- calls, news, ..  names that one manager serves
//!                      +-- 7-0.at  its address            <--- looked up by hamlyn://calls
//! ```

#[cfg(feature = "tls")]
use crate::support::loud;
use crate::support::skipped;
use hamlyn::protocol::{Manager, Seed};
use hamlyn::{Config, Node};
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Rings,
    /// With so many connections.
    #[cfg(feature = "tls")]
    Tls(u32),
    /// With this provider, and so many end points for each link.
    #[cfg(feature = "libfabric")]
    Fabric(&'static str, u32),
}

pub const VARIABLE: &str = "HAMLYN_TEST_OVER";

pub fn over() -> Over {
    static OVER: OnceLock<Over> = OnceLock::new();
    *OVER.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("rings") => Over::Rings,
        #[cfg(feature = "tls")]
        Ok("tls") => Over::Tls(1),
        #[cfg(feature = "tls")]
        Ok("tls-two-rails") => Over::Tls(2),
        #[cfg(feature = "libfabric")]
        Ok(of_fabric @ ("libfabric" | "libfabric-two-rails")) => {
            let provider = provider().expect("libfabric, with RDM over TCP");
            Over::Fabric(provider, if of_fabric == "libfabric" { 1 } else { 2 })
        }
        Ok(other) => {
            panic!("{VARIABLE} is {other:?}, which is none of these tests' kinds of links")
        }
    })
}

/// Whether every manager is as on a host of its own.
pub fn is_of_hosts() -> bool {
    over() != Over::Rings
}

pub fn is_over_libfabric() -> bool {
    #[cfg(feature = "libfabric")]
    return matches!(over(), Over::Fabric(..));
    #[cfg(not(feature = "libfabric"))]
    false
}

/// Whether a test does not run, since what it is about ends at a host's edge, or is at hand only on
/// one host; then it says so.
pub fn only_on_one_host(why: &str) -> bool {
    if is_of_hosts() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        skipped(&format!("{test} over {:?}: {why}", over()));
    }
    is_of_hosts()
}

/// Whether memory can be open to the other end.
pub fn opens_memory() -> bool {
    match over() {
        Over::Rings => true,
        #[cfg(feature = "tls")]
        Over::Tls(_) => false,
        #[cfg(feature = "libfabric")]
        Over::Fabric(provider, rails) => rails == 1 && !provider.contains("ofi_rxm"),
    }
}

/// A service's name for a client.
pub fn at(service: &str) -> String {
    let scheme = if is_of_hosts() { "hamlyn://" } else { "" };
    format!("{scheme}{service}")
}

/// A peer's process, as far as it can be seen: not on another host.
pub fn seen(pid: u32) -> Option<u32> {
    (!is_of_hosts()).then_some(pid)
}

/// Whether it is what `explain` says of a link of this kind.
pub fn is_said_by(path: &str) -> bool {
    let (tls, fabric) = (path.contains("TLS 1.3"), path.contains("libfabric "));
    match over() {
        Over::Rings => path.contains("ring") && !tls && !fabric,
        #[cfg(feature = "tls")]
        Over::Tls(1) => tls && !fabric && !path.contains("rails"),
        #[cfg(feature = "tls")]
        Over::Tls(rails) => tls && !fabric && path.contains(&format!("of {rails} rails")),
        #[cfg(feature = "libfabric")]
        Over::Fabric(provider, rails) => {
            let is_spread = path.contains(&format!("of {rails} rails"));
            fabric && path.contains(provider) && is_spread == (rails > 1)
        }
    }
}

pub fn manager_with(config: Config) -> Manager {
    Manager::from_node(node_with(config)).unwrap()
}

pub fn node_with(config: Config) -> Node {
    if !is_of_hosts() {
        return Node::with_config(config).unwrap();
    }
    #[cfg(feature = "tls")]
    return hosts::node(config);
    #[cfg(not(feature = "tls"))]
    unreachable!();
}

/// A seed for its grower.
pub trait Reached {
    fn reached(self) -> Self;
}

impl Reached for Seed {
    fn reached(self) -> Self {
        #[cfg(feature = "tls")]
        if is_of_hosts() {
            return hosts::seed(&self);
        }
        self
    }
}

/// The same tests once more, those of some modules or (none are named) all, in a process of their own.
#[cfg(feature = "tls")]
fn again_over(kind: &str, modules: &[&str], threads: usize) {
    // It is such a process.
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(modules)
        .args(["--skip", "over::", "--nocapture", &format!("--test-threads={threads}")])
        .env(VARIABLE, kind)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let [said, told] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    if !output.status.success() {
        println!("{said}\n{told}");
        panic!("over {kind}: {}", output.status);
    }
    let left_out = told.matches("SKIPPED: ").count();
    let passed = said.lines().find_map(|line| {
        let (count, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
        count.parse::<usize>().ok()
    });
    let ran = passed.unwrap() - left_out;
    assert!(ran > 2 * left_out, "{ran} tests ran, {left_out} did not");
    loud(&format!("over {kind}: {ran} tests ran, {left_out} are of one host alone"));
}

/// For `make deep`.
#[cfg(feature = "tls")]
fn is_longer() -> bool {
    std::env::var_os("HAMLYN_TEST_ROUNDS").is_some()
}

#[cfg(feature = "tls")]
const SOME: &[&str] = &["calls::", "group::", "datagram::", "general::", "stream_loan::"];

#[cfg(feature = "tls")]
#[test]
fn the_same_holds_over_tls() {
    again_over("tls", if is_longer() { &[] } else { SOME }, 4);
}

#[cfg(feature = "tls")]
#[test]
fn the_same_holds_over_two_rails() {
    if is_longer() {
        again_over("tls-two-rails", &[], 4);
    }
}

#[cfg(feature = "libfabric")]
#[test]
fn the_same_holds_over_libfabric() {
    if !is_longer() {
        return;
    }
    if provider().is_none() {
        return skipped("libfabric 1.17 or newer, with RDM over TCP (Debian: libfabric1)");
    }
    again_over("libfabric", &[], 8);
    again_over("libfabric-two-rails", &[], 8);
}

#[cfg(feature = "libfabric")]
fn library() -> Option<std::sync::Arc<hamlyn::os::fabric::Library>> {
    let file = std::env::var_os("HAMLYN_FABRIC_LIBRARY").map(std::path::PathBuf::from);
    hamlyn::os::fabric::Library::open(file.as_deref()).ok()
}

/// Of those that do reliable datagrams over TCP, the first that there is.
#[cfg(feature = "libfabric")]
fn provider() -> Option<&'static str> {
    let library = library()?;
    ["tcp", "net", "tcp;ofi_rxm"].into_iter().find(|name| {
        let choice = library.choose(Some(name), Some(std::net::Ipv4Addr::LOCALHOST.into()));
        choice.is_ok_and(|choice| choice.provider() == *name)
    })
}

#[cfg(feature = "tls")]
mod hosts {
    use super::{Over, over};
    use hamlyn::node::{HostDirectory, Place};
    use hamlyn::protocol::Seed;
    use hamlyn::{Config, Node, NodeId};
    use std::collections::HashMap;
    use std::error::Error;
    use std::io::{ErrorKind, Write};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex, OnceLock};
    use std::time::Duration;

    /// Where the nodes of this process listen.
    fn listening() -> &'static Mutex<HashMap<NodeId, SocketAddr>> {
        static LISTENING: OnceLock<Mutex<HashMap<NodeId, SocketAddr>>> = OnceLock::new();
        LISTENING.get_or_init(Mutex::default)
    }

    pub fn seed(seed: &Seed) -> Seed {
        let address = listening().lock().unwrap()[&seed.node()];
        seed.at_host(&address.to_string()).unwrap()
    }

    /// That of all hosts of a test.
    fn secret(test: &Path) -> PathBuf {
        let path = test.join("secret");
        let whole = test.join(format!("secret-{}", own_number()));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&whole).unwrap();
        writeln!(file, "{}", "7f".repeat(32)).unwrap();
        std::fs::rename(whole, &path).unwrap();
        path
    }

    /// That of nothing else of the test.
    fn own_number() -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    pub fn node(config: Config) -> Node {
        let test = config.dir.clone().unwrap();
        let own = test.join(own_number());
        std::fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
        let config = config
            .dir(&own)
            .secret(secret(&test))
            .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let config = match over() {
            Over::Rings => unreachable!(),
            Over::Tls(rails) => config.rails(rails),
            #[cfg(feature = "libfabric")]
            Over::Fabric(provider, rails) => {
                let config = config.fabric(hamlyn::config::Fabric::Trusted).rails(rails);
                // A leaving process waits no longer than this for another that makes no calls, such
                // as one that leaves after it in the same thread.
                let config = config.fabric_provider(provider).handshake_timeout_ms(1000u32);
                match std::env::var_os("HAMLYN_FABRIC_LIBRARY") {
                    Some(library) => config.fabric_library(PathBuf::from(library)),
                    None => config,
                }
            }
        };
        let mut node = Node::with_config(config).unwrap();
        let address = node.listens_at().unwrap();
        listening().lock().unwrap().insert(node.id(), address);
        std::fs::write(own.with_extension("new"), address.to_string()).unwrap();
        std::fs::rename(own.with_extension("new"), own.with_extension("at")).unwrap();
        node.set_directory(Some(Arc::new(Hosts(test)))).unwrap();
        node
    }

    /// The hosts of a test.
    struct Hosts(PathBuf);

    impl HostDirectory for Hosts {
        fn look_up(
            &self,
            service: &str,
            _: Option<Duration>,
        ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> {
            let mut places = Vec::new();
            for entry in std::fs::read_dir(&self.0)? {
                let path = entry?.path();
                if path.extension().is_none_or(|is| is != "at") {
                    continue;
                }
                match std::fs::symlink_metadata(path.with_extension("").join(service)) {
                    Ok(_) => places.push(std::fs::read_to_string(&path)?.parse()?),
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(places)
        }
    }
}
