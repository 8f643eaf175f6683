//! Jobs: the processes of one parallel program, started together, which find one another without
//! configuration. Each has a *rank*, from 0 up.
//!
//! ```text
//!   hamlyn run -n 4 -- program           mpirun, srun (PMIx), mpiexec (PMI-1)
//!            \                             /
//!             +--- rank, size; put, fence, get of bytes
//!                                          |
//!   Job: a manager of its own; the address of each rank's node; a token for each end point, which
//!        both ends derive from the job's secret. A link is made when it is first used: by a ring
//!        to a rank of this host, by TLS to one of another (feature `tls`).
//! ```
//! ```
//! # let dir = std::env::temp_dir().join(format!("hamlyn-doc-job-{}", std::process::id()));
//! use hamlyn::job::Job;
//! use std::time::Duration;
//!
//! let limit = Some(Duration::from_secs(10));
//! // Under a launcher one of many; without one a job of one rank.
//! let job = Job::from_env()?;
//! # drop(job);
//! # let job = Job::with_config(hamlyn::Config::from_env()?.dir(&dir))?;
//! let next = (job.rank() + 1) % job.size();
//! let before = (job.rank() + job.size() - 1) % job.size();
//!
//! let mut from = job.stream_from(before)?;
//! let mut to = job.stream_to(next, limit)?;
//! to.send(format!("hello from rank {}", job.rank()).as_bytes(), limit)?;
//! to.flush(limit)?;
//! assert_eq!(&*from.receive(limit)?, format!("hello from rank {before}").as_bytes());
//! job.fence(limit)?; // No rank ends before all have heard.
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! [`Job::explain`] names the launcher, and those that were looked for in vain.
//!
//! - `ranks`: nodes of a layer's own, and one link to each rank
//! - `space`: the common interface of launchers; `talk`: PMI-1 and `hamlyn run`; PMIx is `os::pmix`
//! - `fence`: the space as threads share it; `turn`: time limits, and a lock that keeps them
//! - `lines`: the text of PMI-1; `again`: the errors after which a rank tries again

mod again;
mod error;
mod fence;
mod launcher;
#[cfg(not(feature = "unstable-internals"))]
#[allow(dead_code, unreachable_pub)]
mod lines;
#[cfg(feature = "unstable-internals")]
pub mod lines;
mod ranks;
mod space;
mod talk;
mod turn;

pub use error::JobError;
pub use launcher::Launcher;
pub use ranks::Ranks;

use crate::config::Config;
use crate::control::private_dir;
use crate::node::Node;
use crate::os::{environment, sys};
use crate::protocol::{
    Client, GrowError, Grown, Kind, Manager, Offered, Seed, Server, ServerConfig, StreamConfig,
    StreamReceiver, StreamSender, Token,
};
use crate::wire::NodeId;
use again::{Again, CROWDED, CROWDED_PAUSE_MAX, again, is_too_late};
use core::fmt;
use core::time::Duration;
use fence::SharedSpace;
use sha2::{Digest, Sha256};
use space::{JobSpace, own_name};
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::vec::Vec;
use turn::Within;

/// Extra time beyond the time limit of the first meeting, for the names of missing ranks.
const FOR_NAMES: Duration = Duration::from_secs(2);
/// Pauses before a rank is asked again for an offer.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Bytes that distinguish one host from another.
const HOST_BYTES: usize = 16;
/// The name under which a rank's server of calls is offered ([`Job::server`]).
const CALLS: &str = "calls";

/// The job of this process. Cloning shares it; the last clone tells the launcher when it is dropped
/// that this rank no longer needs it.
#[derive(Clone)]
pub struct Job {
    shared: Arc<JobState>,
}

struct JobState {
    rank: u32,
    size: u32,
    launcher: Launcher,
    how: String,
    manager: Manager,
    /// Of the nodes of layers.
    config: Config,
    host_name: Option<String>,
    secret: [u8; 32],
    /// The hosts of all ranks; empty in a job of one.
    hosts: Vec<[u8; HOST_BYTES]>,
    space: SharedSpace,
    cards: Mutex<BTreeMap<u32, Card>>,
    ever_linked: Mutex<BTreeSet<u32>>,
}

/// The address of a rank's node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    node: NodeId,
    /// `host:port`, at which it listens for other hosts.
    at: Option<String>,
}

impl Card {
    fn to_bytes(&self) -> Vec<u8> {
        [&self.node.0.to_le_bytes()[..], self.at.as_deref().unwrap_or_default().as_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (node, at) = bytes.split_first_chunk::<8>()?;
        let at = core::str::from_utf8(at).ok()?;
        let at = (!at.is_empty()).then(|| at.into());
        Some(Self { node: NodeId(u64::from_le_bytes(*node)), at })
    }
}

/// The job of this process; the launcher sends its contents only once.
static CURRENT: Mutex<Weak<JobState>> = Mutex::new(Weak::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    /// The job for which this process was started, with a manager that has the settings of the
    /// environment (`HAMLYN_*`). Launchers are looked for in this order: `hamlyn run`; PMIx; PMI-1;
    /// without a launcher it is a job of one rank. Waits until all ranks have come, for at most
    /// `job_timeout_ms`. In a process that has the job already it returns the same one.
    ///
    /// On an error this process has no job. An invalid answer of the launcher, a launcher that went
    /// away and ranks that did not come are different errors.
    pub fn from_env() -> Result<Self, JobError> {
        Self::with_config(Config::from_env()?)
    }

    /// The same with a manager that has these settings, except for `secret` and `listen` if the job
    /// has several hosts: then they are the job's.
    pub fn with_config(config: Config) -> Result<Self, JobError> {
        let mut current = lock(&CURRENT);
        if let Some(shared) = current.upgrade() {
            return Ok(Self { shared });
        }
        let library = config.pmix_library.clone();
        let space = JobSpace::find(environment::text, library.as_deref())?;
        let shared = Arc::new(JobState::come(space, config)?);
        *current = Arc::downgrade(&shared);
        Ok(Self { shared })
    }

    /// The number of this process, from 0 to one less than [`size`](Self::size).
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// The launcher that started it.
    pub fn launcher(&self) -> Launcher {
        self.shared.launcher
    }

    /// The manager for end points of the job.
    pub fn manager(&self) -> &Manager {
        &self.shared.manager
    }

    /// Whether a rank is on this host, so that messages to it go through a ring.
    pub fn is_local(&self, rank: u32) -> Result<bool, JobError> {
        self.shared.check(rank)?;
        Ok(self.shared.is_local(rank))
    }

    /// Bytes for all other ranks, which [`get`](Self::get) them after the next
    /// [`fence`](Self::fence). A name is put once. The launcher carries them, and bounds them:
    /// Hydra to 511 bytes, `hamlyn run` and PMIx to 32,256.
    ///
    /// ```no_run
    /// # use hamlyn::job::Job;
    /// # use hamlyn::protocol::{Kind, StreamSender};
    /// # use std::time::Duration;
    /// # let limit = Some(Duration::from_secs(10));
    /// let job = Job::from_env()?;
    /// println!("rank {} of {}, started by {:?}", job.rank(), job.size(), job.launcher());
    /// job.put("colour", b"green")?;
    /// job.fence(limit)?;
    /// let next = (job.rank() + 1) % job.size();
    /// assert_eq!(job.get(next, "colour")?, b"green");
    /// // Calls, and offers of a rank, found when first used.
    /// let _server = job.server()?;
    /// let client = job.client(next, limit)?;
    /// println!("here: {}; {}", job.is_local(next)?, client.explain());
    /// let seed = job.seed_of(next, Kind::STREAM, "rows")?;
    /// let rows = StreamSender::grow(job.manager(), &seed, limit)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put(&self, name: &str, value: &[u8]) -> Result<(), JobError> {
        let put = self.shared.space.put(&own_name(name)?, value);
        put.map_err(|e| match e {
            JobError::PutAlready { .. } => JobError::PutAlready { found: name.into() },
            e => e,
        })
    }

    /// The bytes that `rank` put under `name` before the last fence.
    pub fn get(&self, rank: u32, name: &str) -> Result<Vec<u8>, JobError> {
        self.shared.check(rank)?;
        let own = own_name(name)?;
        let got = self.shared.space.get(rank, &own, Within::new(None));
        got.map_err(|e| match e {
            JobError::NothingPut { rank, .. } => JobError::NothingPut { rank, found: name.into() },
            e => e,
        })
    }

    /// Waits until all ranks have called this as often as this one; meanwhile the manager has its
    /// turns. Afterwards all ranks can get all bytes that were put before. If the time limit
    /// passes, the fence stays begun: the next call goes on waiting for the same one. Threads that
    /// call this at once have a fence each, in turn: two calls here match two calls of every other
    /// rank. The launcher carries it, so use it for setting up: the barrier of a
    /// [group](crate::protocol::Group) is for later phases.
    ///
    /// `limit` bounds the whole call, even if the launcher is silent or another thread waits for
    /// its answer. Repeated calls with a short `limit` rarely ask for the missing ranks.
    pub fn fence(&self, limit: Option<Duration>) -> Result<(), JobError> {
        self.shared.space.fence(Some(&self.shared.manager), limit, Duration::ZERO)
    }

    /// Offers an end point of [`manager`](Self::manager) to the other ranks, which
    /// [`grow`](Self::grow) from it under this name; those that asked earlier wait until it is
    /// offered. A name is unique among end points of one kind. Dropping the end point withdraws all
    /// its names.
    pub fn offer(&self, receiver: &impl Offered, name: &str) -> Result<(), JobError> {
        self.offer_as(receiver, &own_name(name)?, name)
    }

    fn offer_as(&self, receiver: &impl Offered, own: &str, name: &str) -> Result<(), JobError> {
        let shared = &self.shared;
        let offer = receiver.offer();
        if offer.manager().id() != shared.manager.id() {
            return Err(JobError::OtherManager);
        }
        let token = |kind| shared.token(kind, shared.rank, own);
        let offered = offer.manager().offer_with(offer.id, token);
        offered.ok_or_else(|| JobError::Taken { found: name.into() })
    }

    /// Grows an end point from the one that `rank` offers under `name`, and makes the link for it.
    /// Waits, until `limit`, for the launcher to send the rank's address, for the rank to offer it,
    /// and for the rank to have time if many ranks of other hosts ask at once (for that at most a
    /// minute). `with` is the further argument of [`Grown`].
    pub fn grow<T: Grown>(
        &self,
        rank: u32,
        name: &str,
        with: T::With,
        limit: Option<Duration>,
    ) -> Result<T, JobError> {
        self.grow_as(rank, &own_name(name)?, name, with, limit)
    }

    fn grow_as<T: Grown>(
        &self,
        rank: u32,
        own: &str,
        name: &str,
        with: T::With,
        limit: Option<Duration>,
    ) -> Result<T, JobError> {
        let shared = &self.shared;
        let (within, crowded) = (Within::new(limit), Within::new(Some(CROWDED)));
        let seed = shared.seed(rank, T::KIND, own, within)?;
        let mut pause = PAUSE_MIN;
        let mut has_answered = false;
        let not_offered = || JobError::NotOffered { rank, found: name.into() };
        loop {
            let left = limit.map(|_| within.left());
            let error = match T::grow(&shared.manager, &seed, with.clone(), left) {
                Ok(grown) => {
                    lock(&shared.ever_linked).insert(rank);
                    return Ok(grown);
                }
                Err(e) => e,
            };
            let is_last = left.is_some_and(|left| left <= pause);
            let pause_max = match again(&error) {
                // The rank may offer it later.
                Some(Again::NotOffered) if is_last => return Err(not_offered()),
                Some(Again::NotOffered) => {
                    has_answered = true;
                    PAUSE_MAX
                }
                Some(Again::Crowded) if !is_last && !crowded.is_over() => CROWDED_PAUSE_MAX,
                // The last attempt has the rest of the time, which may be too little for an answer.
                None if has_answered && is_too_late(&error) => return Err(not_offered()),
                _ => return Err(error.into()),
            };
            shared.manager.poll().map_err(GrowError::from)?;
            std::thread::sleep(pause);
            pause = (pause * 2).min(pause_max);
        }
    }

    /// A seed of the end point that `rank` offers, now or later, under `name` and as `kind`, for
    /// programs that cannot use [`grow`](Self::grow). A secret of the job.
    pub fn seed_of(&self, rank: u32, kind: Kind, name: &str) -> Result<Seed, JobError> {
        self.shared.seed(rank, kind, &own_name(name)?, Within::new(None))
    }

    /// The stream to a rank, which takes it with [`stream_from`](Self::stream_from): waits until it
    /// does, or until `limit`.
    pub fn stream_to(&self, rank: u32, limit: Option<Duration>) -> Result<StreamSender, JobError> {
        let name = format!("from-{}", self.rank());
        self.grow_as(rank, &format!("s-{name}"), &name, (), limit)
    }

    /// The stream from a rank, which grows it with [`stream_to`](Self::stream_to) at any time.
    pub fn stream_from(&self, rank: u32) -> Result<StreamReceiver, JobError> {
        self.shared.check(rank)?;
        let receiver = StreamReceiver::new(self.manager(), StreamConfig::default())?;
        let name = format!("from-{rank}");
        self.offer_as(&receiver, &format!("s-{name}"), &name)?;
        Ok(receiver)
    }

    /// This rank's server of calls. Every rank may be its [`client`](Self::client).
    pub fn server(&self) -> Result<Server, JobError> {
        let server = Server::new(self.manager(), ServerConfig::default())?;
        self.offer_as(&server, &format!("s-{CALLS}"), CALLS)?;
        Ok(server)
    }

    /// A client of a rank's [`server`](Self::server): waits until the rank has one, or until
    /// `limit`.
    pub fn client(&self, rank: u32, limit: Option<Duration>) -> Result<Client, JobError> {
        self.grow_as(rank, &format!("s-{CALLS}"), CALLS, Default::default(), limit)
    }

    /// The launcher, the reasons against the others, the number of ranks on this host, and the
    /// ranks to which this one has made links.
    pub fn explain(&self) -> String {
        let shared = &self.shared;
        let local = (0..shared.size).filter(|rank| shared.is_local(*rank)).count();
        #[cfg(feature = "tls")]
        let listens_at = shared.manager.listens_at();
        #[cfg(not(feature = "tls"))]
        let listens_at = None::<core::net::SocketAddr>;
        let listens = match listens_at {
            Some(address) => format!("by TLS to the others, for whom it listens at {address}"),
            None => "to no others".into(),
        };
        let linked = lock(&shared.ever_linked);
        let linked: Vec<String> = linked.iter().map(u32::to_string).collect();
        let linked = if linked.is_empty() { "none".into() } else { linked.join(", ") };
        format!(
            "rank {} of {}, {}; by rings to the {local} of this host, {listens}; links made so far \
             to ranks: {linked}",
            shared.rank, shared.size, shared.how
        )
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("how", &self.shared.how)
            .finish_non_exhaustive()
    }
}

/// Identifies the processes that find this one's services: the same system, since its start, and
/// the same directory in the same file systems.
fn own_host(config: &Config) -> [u8; HOST_BYTES] {
    use std::os::unix::ffi::OsStrExt;
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mounts = std::fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    let mut digest = Sha256::new();
    for part in
        [&boot[..], mounts.as_os_str().as_bytes(), private_dir(config).as_os_str().as_bytes()]
    {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let mut host = [0; HOST_BYTES];
    host.copy_from_slice(&digest.finalize()[..HOST_BYTES]);
    host
}

impl JobState {
    /// Comes together with the other ranks.
    fn come(space: JobSpace, config: Config) -> Result<Self, JobError> {
        config.validate()?;
        let (rank, size, launcher) = (space.rank, space.size, space.launcher());
        let found = &space.found;
        let not = found.not.join(", ");
        let how = match (launcher, not.is_empty()) {
            (Launcher::None, _) => format!("alone: there is no {not}"),
            (_, true) => format!("started by {launcher} ({})", found.variable),
            (_, false) => format!("started by {launcher} ({}); there is no {not}", found.variable),
        };
        let limit = Some(Duration::from_millis(config.job_timeout_ms.into()));
        let given = space.secret;
        let host_name = space.host.clone();
        let space = SharedSpace::new(space);
        let (secret, hosts) = match meet(&space, (rank, size, launcher), given, &config, limit) {
            Ok(met) => met,
            Err(e) => {
                space.finish();
                return Err(e);
            }
        };
        let made = manager(config.clone(), (rank, &secret, &hosts), host_name.clone());
        let came = made.and_then(|(manager, card)| {
            space.put("card", &card.to_bytes())?;
            space.fence(Some(&manager), limit, FOR_NAMES)?;
            Ok(manager)
        });
        let manager = match came {
            Ok(manager) => manager,
            Err(e) => {
                space.finish();
                return Err(e);
            }
        };
        Ok(Self {
            rank,
            size,
            launcher,
            how,
            manager,
            config,
            host_name,
            secret,
            hosts,
            space,
            cards: Mutex::default(),
            ever_linked: Mutex::default(),
        })
    }

    fn check(&self, rank: u32) -> Result<(), JobError> {
        let size = self.size;
        if rank < size { Ok(()) } else { Err(JobError::NoRank { rank, size }) }
    }

    fn is_local(&self, rank: u32) -> bool {
        let host = |rank: u32| self.hosts.get(rank as usize);
        host(rank) == host(self.rank)
    }

    /// A token that both ends derive from the job's secret; no other process can.
    fn token(&self, kind: Kind, rank: u32, name: &str) -> Token {
        let mut digest = Sha256::new();
        digest.update(b"hamlyn job token 2");
        digest.update(self.secret);
        digest.update(kind.number().to_le_bytes());
        digest.update(rank.to_le_bytes());
        digest.update(name.as_bytes());
        let mut token = Token::NONE;
        token.0.copy_from_slice(&digest.finalize()[..16]);
        token
    }

    fn seed(&self, rank: u32, kind: Kind, name: &str, within: Within) -> Result<Seed, JobError> {
        let card = self.card(rank, within)?;
        let service = format!("seeds-{:016x}", card.node.0);
        let seed = Seed { kind, node: card.node, token: self.token(kind, rank, name), service };
        self.place_at(rank, seed, card.at.as_deref())
    }

    /// A rank's service, as this rank asks for it.
    fn service_at(&self, rank: u32, service: String, at: Option<&str>) -> Result<String, JobError> {
        let (node, token) = (NodeId(0), Token::NONE);
        let seed = Seed { kind: Kind::STREAM, node, token, service };
        Ok(self.place_at(rank, seed, at)?.service)
    }

    /// A rank's seed, as this rank uses it; `at`: where that rank listens for other hosts.
    fn place_at(&self, rank: u32, seed: Seed, at: Option<&str>) -> Result<Seed, JobError> {
        if self.is_local(rank) {
            return Ok(seed);
        }
        #[cfg(feature = "tls")]
        if let Some(at) = at {
            let wrong = |e: crate::protocol::SeedError| JobError::Environment {
                variable: "HAMLYN_JOB_HOST",
                value: at.into(),
                allowed: e.to_string(),
            };
            return seed.at_host(at).map_err(wrong);
        }
        let _ = at;
        Err(JobError::OtherHost { rank })
    }

    fn card(&self, rank: u32, within: Within) -> Result<Card, JobError> {
        self.check(rank)?;
        if let Some(card) = lock(&self.cards).get(&rank) {
            return Ok(card.clone());
        }
        let bytes = self.space.get(rank, "card", within)?;
        let card = Card::from_bytes(&bytes)
            .ok_or_else(|| nonsense(self.launcher, "telling where a rank is", &bytes))?;
        lock(&self.cards).insert(rank, card.clone());
        Ok(card)
    }
}

fn nonsense(launcher: Launcher, doing: &'static str, bytes: &[u8]) -> JobError {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).to_string();
    JobError::Launcher { launcher, doing, text }
}

impl Drop for JobState {
    fn drop(&mut self) {
        // A forked child is no rank.
        if !self.manager.is_forked() {
            self.space.finish();
        }
    }
}

/// The job's secret, and the hosts of all ranks.
#[allow(clippy::type_complexity)]
fn meet(
    space: &SharedSpace,
    (rank, size, launcher): (u32, u32, Launcher),
    given: Option<[u8; 32]>,
    config: &Config,
    limit: Option<Duration>,
) -> Result<([u8; 32], Vec<[u8; HOST_BYTES]>), JobError> {
    // Rank 0 makes a secret, if the launcher did not.
    let random = || {
        let doing = "making the job's secret";
        sys::random().map_err(|error| JobError::Os { doing, error })
    };
    let made = match given {
        Some(secret) => Some(secret),
        None if rank == 0 => Some(random()?),
        None => None,
    };
    if size == 1 {
        return Ok((made.map_or_else(random, Ok)?, [own_host(config)].into()));
    }
    if given.is_none()
        && let Some(secret) = &made
    {
        space.put("secret", secret)?;
    }
    space.put("host", &own_host(config))?;
    space.fence(None, limit, FOR_NAMES)?;
    let get = |rank, name| space.get(rank, name, Within::new(None));
    let secret = match made {
        Some(secret) => secret,
        // No error contains its bytes.
        None => <[u8; 32]>::try_from(get(0, "secret")?)
            .map_err(|_| nonsense(launcher, "telling the job's secret", b"(not 32 bytes)"))?,
    };
    let mut hosts = Vec::new();
    for rank in 0..size {
        let bytes = get(rank, "host")?;
        let host = <[u8; HOST_BYTES]>::try_from(&bytes[..]);
        hosts.push(host.map_err(|_| nonsense(launcher, "telling a rank's host", &bytes))?);
    }
    Ok((secret, hosts))
}

/// A rank, the job's secret, and the hosts of all ranks.
type RankAndHosts<'a> = (u32, &'a [u8; 32], &'a [[u8; HOST_BYTES]]);

/// This rank's manager, and its address for the others.
fn manager(
    config: Config,
    place: RankAndHosts<'_>,
    host_name: Option<String>,
) -> Result<(Manager, Card), JobError> {
    let (node, at) = node_of(config, place, host_name)?;
    let manager = Manager::from_node(node)?;
    manager.seed_service()?;
    let card = Card { node: manager.id(), at };
    Ok((manager, card))
}

/// A node of this rank's, and the `host:port` at which it listens, if the job has several hosts.
fn node_of(
    config: Config,
    (rank, secret, hosts): RankAndHosts<'_>,
    host_name: Option<String>,
) -> Result<(Node, Option<String>), JobError> {
    let other = hosts.iter().position(|host| *host != hosts[rank as usize]);
    let Some(_other) = other else { return Ok((Node::with_config(config)?, None)) };
    #[cfg(not(feature = "tls"))]
    {
        let _ = (secret, host_name);
        Err(JobError::OtherHost { rank: _other as u32 })
    }
    #[cfg(feature = "tls")]
    {
        let doing = "putting the job's secret where this process alone reads it";
        let os = |doing| move |error| JobError::Os { doing, error };
        let file = secret_file(secret).map_err(os(doing))?;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let mut config = config.secret(std::path::PathBuf::from(path));
        (config.certificate, config.certificate_key, config.trusted) = (None, None, None);
        if config.listen.is_none() {
            config.listen = Some(any_address());
        }
        let node = Node::with_config(config)?;
        drop(file);
        let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let set = environment::text("HAMLYN_JOB_HOST").filter(|name| !name.is_empty());
        let name = set.or(host_name).unwrap_or_else(own);
        let name =
            if name.contains(':') && !name.starts_with('[') { format!("[{name}]") } else { name };
        let at = node.listens_at().map(|address| format!("{name}:{}", address.port()));
        Ok((node, at))
    }
}

/// On no disk, and only for its owner.
#[cfg(feature = "tls")]
fn secret_file(secret: &[u8; 32]) -> std::io::Result<std::fs::File> {
    use crate::os::call::{OfCall, may_grow_to};
    use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
    use std::io::Write;
    let file = memfd_create("hamlyn-job", MemfdFlags::CLOEXEC).of_call("memfd_create")?;
    fchmod(&file, Mode::RUSR | Mode::WUSR).of_call("fchmod")?;
    let mut file = std::fs::File::from(file);
    let text = lines::to_hex(secret);
    may_grow_to(text.len() as u64).of_call("write")?;
    file.write_all(text.as_bytes()).of_call("write")?;
    Ok(file)
}

/// Every address of this host, of both families if there are both.
#[cfg(feature = "tls")]
fn any_address() -> core::net::SocketAddr {
    use core::net::{Ipv4Addr, Ipv6Addr};
    let both = core::net::SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    match std::net::TcpListener::bind(both) {
        Ok(_) => both,
        Err(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
    }
}
