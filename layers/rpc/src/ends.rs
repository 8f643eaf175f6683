//! Calling a program of a service, and answering calls: on [`Client`] and [`Server`], which carry a call's message as a
//! request and its reply's as the reply.

use crate::message::{Auth, Body, Call, NotCall, Outcome, Reply};
use crate::xdr::{Decoder, Encoder, Malformed};
use hamlyn::Peer;
use hamlyn::protocol::{Bytes, CallError, Client, GrowError, Manager, Request};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// On its way, or the server has ended: it says whether the server may have carried the call out.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The reply is not one.
    #[error("the server's reply is not one of ONC RPC")]
    Malformed,
    /// The reply is that of another call.
    #[error("the server's reply has number {got:#x}, of another call than {xid:#x}")]
    OtherCall {
        /// The call's number.
        xid: u32,
        /// The reply's.
        got: u32,
    },
    /// The program answered that it has not carried the call out.
    #[error("the program has answered: {0}")]
    Failed(Outcome),
    /// The server speaks other versions of RPC.
    #[error("the server speaks versions {low} to {high} of RPC")]
    OtherRpc {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The server does not accept the credential.
    #[error("the server accepts no calls without a credential (auth_stat {0})")]
    Unauthenticated(i32),
}

/// Calls one version of one program. Several threads may call.
pub struct Caller {
    client: Client,
    program: u32,
    version: u32,
    xid: AtomicU32,
}

/// The reply to a call that was carried out.
#[derive(Debug)]
pub struct Answered {
    bytes: Bytes,
    results: usize,
}

impl Answered {
    /// Reads the results.
    pub fn results(&self) -> Decoder<'_> {
        Decoder::new(&self.bytes[self.results..])
    }
}

impl Caller {
    /// Connects to the service `[user@]name`, waiting at most `timeout`.
    pub fn connect(
        manager: &Manager,
        service: &str,
        (program, version): (u32, u32),
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        let client = Client::connect(manager, service, timeout)?;
        Ok(Self { client, program, version, xid: AtomicU32::new(std::process::id()) })
    }

    /// Calls a procedure with the arguments that `arguments` writes, and waits for its reply, at most `timeout`.
    pub fn call(
        &self,
        procedure: u32,
        arguments: impl FnOnce(&mut Encoder),
        timeout: Option<Duration>,
    ) -> Result<Answered, Error> {
        let (xid, message) = self.message(procedure, arguments);
        let bytes = self.client.call(message.bytes(), timeout)?;
        let mut from = Decoder::new(&bytes);
        let reply = Reply::decode(&mut from).map_err(|_| Error::Malformed)?;
        if reply.xid != xid {
            return Err(Error::OtherCall { xid, got: reply.xid });
        }
        match reply.body {
            Body::Accepted { outcome: Outcome::Success, .. } => {}
            Body::Accepted { outcome, .. } => return Err(Error::Failed(outcome)),
            Body::OtherRpc { low, high } => return Err(Error::OtherRpc { low, high }),
            Body::Unauthenticated(reason) => return Err(Error::Unauthenticated(reason)),
        }
        let results = bytes.len() - from.rest().len();
        Ok(Answered { bytes, results })
    }

    /// Calls a procedure that does not reply: returns when the call has been copied, which waits at most `timeout` for
    /// one of the calls that may be on their way.
    pub fn call_one_way(
        &self,
        procedure: u32,
        arguments: impl FnOnce(&mut Encoder),
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let (_, message) = self.message(procedure, arguments);
        self.client.forget(self.client.start(message.bytes(), timeout)?);
        Ok(())
    }

    fn message(&self, procedure: u32, arguments: impl FnOnce(&mut Encoder)) -> (u32, Encoder) {
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        let (program, version) = (self.program, self.version);
        let none = Auth::default();
        let mut message = Encoder::new();
        Call { xid, program, version, procedure, credential: none, verifier: none }
            .encode(&mut message);
        arguments(&mut message);
        (xid, message)
    }
}

/// The reason why a procedure has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments are not of its type.
    GarbageArguments,
    /// It has failed.
    SystemError,
    /// It is one-way: there is no reply.
    Silent,
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::GarbageArguments
    }
}

/// A call that a program is to carry out.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The procedure's number, never 0.
    pub procedure: u32,
    /// The arguments.
    pub arguments: Decoder<'a>,
    /// The caller, from the kernel; `None`: it has left.
    pub peer: Option<Peer>,
}

/// One version of a program.
pub struct Program<'a> {
    /// The program's number.
    pub number: u32,
    /// Its version.
    pub version: u32,
    /// Carries out a call, and writes the results.
    #[allow(clippy::type_complexity)]
    pub carry_out: &'a dyn Fn(&mut Asked<'_>, &mut Encoder) -> Result<(), Refusal>,
}

/// Answers a request that a server has received, by the program that it names; waits at most `timeout` for room for the
/// reply. A request that is no call of ONC RPC gets no reply.
///
/// Errors: as [`Request::reply`]; they concern this caller alone.
pub fn answer(
    request: Request<'_>,
    programs: &[Program<'_>],
    timeout: Option<Duration>,
) -> Result<(), CallError> {
    let mut message = Encoder::new();
    let mut arguments = Decoder::new(&request);
    let reply = match Call::read(&mut arguments) {
        Err(NotCall::Malformed) => return Ok(()),
        Err(NotCall::OtherVersion { xid }) => {
            Reply { xid, body: Body::OtherRpc { low: 2, high: 2 } }
        }
        Ok(call) => {
            let accepted = |outcome| Reply {
                xid: call.xid,
                body: Body::Accepted { verifier: Auth::default(), outcome },
            };
            // The results follow the head of a success, and are taken back if it is none.
            accepted(Outcome::Success).encode(&mut message);
            let found = |program: &&Program<'_>| program.number == call.program;
            let versions = || programs.iter().filter(found).map(|program| program.version);
            let program = programs.iter().filter(found).find(|p| p.version == call.version);
            let outcome = match (program, versions().min(), versions().max()) {
                (Some(program), ..) if call.procedure != 0 => {
                    let (procedure, peer) = (call.procedure, request.peer());
                    let mut asked = Asked { procedure, arguments, peer };
                    match (program.carry_out)(&mut asked, &mut message) {
                        Ok(()) => Outcome::Success,
                        Err(Refusal::NoProcedure) => Outcome::NoProcedure,
                        Err(Refusal::GarbageArguments) => Outcome::GarbageArguments,
                        Err(Refusal::SystemError) => Outcome::SystemError,
                        Err(Refusal::Silent) => return Ok(()),
                    }
                }
                (Some(_), ..) => Outcome::Success,
                (None, Some(low), Some(high)) => Outcome::OtherVersion { low, high },
                (None, ..) => Outcome::NoProgram,
            };
            if outcome == Outcome::Success {
                return request.reply(message.bytes(), timeout);
            }
            accepted(outcome)
        }
    };
    message.truncate(0);
    reply.encode(&mut message);
    let message = message;
    request.reply(message.bytes(), timeout)
}
