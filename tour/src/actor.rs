//! The processes of the tour: this program again, with a hidden subcommand, as another user if this
//! one has the right to.
//!
//! An actor's standard input is its material. Its standard output is a socket for orders and
//! answers, one line of JSON each. An actor ends when its orders end.

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use hamlyn_tools::ending;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The role of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    Receiver,
    Sender,
    Stranger,
    /// Connects to the services in its orders, like an honest program.
    Visitor,
    /// Sleeps, as the target of another process of its user.
    Sleeper,
    /// Owns the end points that receive.
    Host,
    /// Owns the end points that send.
    Peer,
    /// Host and peer again, while the stranger attacks them.
    GuardedHost,
    GuardedPeer,
    /// Two hosts, and the attacker on the wire between them.
    Near,
    Far,
    Wire,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Receiver => "receiver",
            Self::Sender => "sender",
            Self::Stranger => "stranger",
            Self::Visitor => "visitor",
            Self::Sleeper => "sleeper",
            Self::Host => "host",
            Self::Peer => "peer",
            Self::GuardedHost => "guarded-host",
            Self::GuardedPeer => "guarded-peer",
            Self::Near => "near",
            Self::Far => "far",
            Self::Wire => "wire",
        })
    }
}

/// The directory in which the actors meet, and their users.
#[derive(Debug)]
pub struct Stage {
    /// For services for other users, or for this user's own if there is only one user.
    pub directory: PathBuf,
    /// Whether each actor is a user of its own.
    pub has_users: bool,
}

/// Users that exist nowhere: a user needs no entry in a list to own processes. Not 65534, which
/// stands for unknown users.
const FIRST_UID: u32 = 64_101;

impl Stage {
    /// As root in /run with users of their own, else in a temporary directory.
    pub fn new() -> Result<Self> {
        let has_users = rustix::process::geteuid().is_root();
        let base = if has_users { PathBuf::from("/run") } else { std::env::temp_dir() };
        let directory = base.join(format!("hamlyn-tour-{}", std::process::id()));
        ending::on_signals()?;
        if has_users {
            let config = hamlyn::Config::default().shared_dir(directory.clone());
            hamlyn::control::setup_shared_dir(&config)?;
        } else {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        // A signal that ends this process removes it, too.
        ending::remove(directory.clone());
        Ok(Self { directory, has_users })
    }

    /// The user that plays a role; the same for all roles without the right to change users.
    pub fn uid(&self, role: Role) -> u32 {
        match role {
            _ if !self.has_users => rustix::process::geteuid().as_raw(),
            Role::Receiver => FIRST_UID,
            Role::Sender => FIRST_UID + 1,
            Role::Visitor => FIRST_UID + 2,
            Role::Stranger | Role::Sleeper => FIRST_UID + 3,
            Role::Host | Role::GuardedHost => FIRST_UID + 4,
            Role::Peer | Role::GuardedPeer => FIRST_UID + 5,
            // These users are mutual strangers on any host.
            Role::Near | Role::Far | Role::Wire => rustix::process::geteuid().as_raw(),
        }
    }

    /// The name to connect to for a service of that role.
    pub fn service(&self, role: Role, name: &str) -> String {
        if self.has_users { format!("{}@{name}", self.uid(role)) } else { name.to_owned() }
    }

    /// The path of that service's socket.
    pub fn socket(&self, role: Role, name: &str) -> PathBuf {
        let directory = self.directory.clone();
        let own =
            if self.has_users { directory.join(self.uid(role).to_string()) } else { directory };
        own.join(name)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
        ending::keep(&self.directory);
    }
}

/// One process of the tour.
pub struct Actor {
    role: Role,
    child: Child,
    lines: BufReader<UnixStream>,
    /// It did not answer an order. The late answer would be taken for that to the next order, so it
    /// gets no more orders.
    is_lost: bool,
}

/// An actor without an answer for this long hangs, which would be our fault.
const PATIENCE: Duration = Duration::from_secs(60);
/// The wire itself waits for two hosts, several times in an attempt, and reports which does not
/// answer.
const PATIENCE_WITH_WIRE: Duration = Duration::from_secs(300);

impl Actor {
    /// Starts it; `input` becomes its standard input, `settings` its variables.
    pub fn start(
        stage: &Stage,
        role: Role,
        input: Stdio,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        // By its own link, not its path, which other users may be unable to reach.
        let mut command = Command::new("/proc/self/exe");
        command
            .env(if stage.has_users { "HAMLYN_SHARED_DIR" } else { "HAMLYN_DIR" }, &stage.directory)
            // They also show the use of memory that both processes write.
            .env("HAMLYN_APERTURES_OF_OTHERS", "yes")
            .envs(settings.iter().copied())
            .current_dir("/");
        if stage.has_users {
            let uid = stage.uid(role);
            command.uid(uid).gid(uid);
        }
        Self::start_command(&mut command, role, input)
    }

    /// Starts it by a command that ends in this program.
    pub fn start_command(command: &mut Command, role: Role, input: Stdio) -> Result<Self> {
        let (here, there) = UnixStream::pair()?;
        let patience = if role == Role::Wire { PATIENCE_WITH_WIRE } else { PATIENCE };
        here.set_read_timeout(Some(patience))?;
        command
            .args(["actor", &role.to_string()])
            .stdin(input)
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(there)));
        let child = command.spawn().with_context(|| format!("cannot start the {role}"))?;
        Ok(Self { role, child, lines: BufReader::new(here), is_lost: false })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and waits for the answer. An error in the answer is returned like any answer;
    /// if none comes in time, this and each later order is an error.
    pub fn ask<A: DeserializeOwned>(&mut self, order: &impl Serialize) -> Result<A> {
        self.tell(order)?;
        self.answer()
    }

    /// Gives an order that is answered later.
    pub fn tell(&mut self, order: &impl Serialize) -> Result<()> {
        ensure!(!self.is_lost, "the {} did not answer an earlier order", self.role);
        let line = serde_json::to_string(order)? + "\n";
        let written = self.lines.get_mut().write_all(line.as_bytes());
        self.is_lost = written.is_err();
        written.with_context(|| self.is_gone())
    }

    pub fn answer<A: DeserializeOwned>(&mut self) -> Result<A> {
        ensure!(!self.is_lost, "the {} did not answer an earlier order", self.role);
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        self.is_lost = !matches!(read, Ok(1..));
        if read.with_context(|| self.is_gone())? == 0 {
            bail!("{}", self.is_gone());
        }
        let answer: Result<A, String> = serde_json::from_str(&line)
            .with_context(|| format!("the {} answered {line:?}", self.role))?;
        answer.map_err(|error| anyhow!("the {}: {error}", self.role))
    }

    fn is_gone(&self) -> String {
        format!("the {} does not answer", self.role)
    }

    /// Kills it, in the middle of its work.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The actor's end.
pub struct Orders(BufReader<UnixStream>);

impl Orders {
    pub fn new() -> Result<Self> {
        let socket = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self(BufReader::new(UnixStream::from(socket))))
    }

    /// The next order; `None`: the tour is over.
    pub fn next<O: DeserializeOwned>(&mut self) -> Result<Option<O>> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line).context("an order that makes no sense")?))
    }

    pub fn answer<A: Serialize>(&mut self, answer: Result<A>) -> Result<()> {
        let answer = answer.map_err(|error| format!("{error:#}"));
        let line = serde_json::to_string(&answer)? + "\n";
        Ok(self.0.get_mut().write_all(line.as_bytes())?)
    }

    /// Readable when there is an order.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// Whether an order waits.
    pub fn is_waiting(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !self.0.buffer().is_empty() || poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}
