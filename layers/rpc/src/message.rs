//! The heads of calls and replies (RFC 5531, 9), without record marks: a Hamlyn message is a record.
//!
//! Accepts and refuses what libtirpc's `xdr_callmsg` and `xdr_replymsg` do; `tests/reference.rs` compares them.

use crate::xdr::{Decoder, Encoder, Malformed};

/// Most bytes of a credential or verifier.
pub const AUTH_BYTES_MAX: u32 = 400;

const CALL: i32 = 0;
const REPLY: i32 = 1;
const RPC_VERSION: u32 = 2;

/// A credential or verifier: a kind and its bytes. Nothing of a peer's is believed: the kernel tells the peer's user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Its kind; 0: none.
    pub flavor: i32,
    /// At most [`AUTH_BYTES_MAX`].
    pub body: &'a [u8],
}

impl<'a> Auth<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(Self { flavor: from.i32()?, body: from.opaque(AUTH_BYTES_MAX)? })
    }

    fn encode(&self, to: &mut Encoder) {
        to.i32(self.flavor).opaque(self.body);
    }
}

/// The head of a call. Its arguments follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The number that its reply repeats.
    pub xid: u32,
    /// The program's number.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// The procedure's number; 0 does nothing, in every program.
    pub procedure: u32,
    /// As the caller says.
    pub credential: Auth<'a>,
    /// Likewise.
    pub verifier: Auth<'a>,
}

/// The reason why bytes are not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCall {
    Malformed,
    /// A call of another version of RPC, which is answered with a reply of its own.
    OtherVersion {
        xid: u32,
    },
}

impl From<Malformed> for NotCall {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl<'a> Call<'a> {
    /// Reads a head; the arguments are left.
    pub fn decode(from: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Self::read(from).map_err(|_| Malformed)
    }

    pub(crate) fn read(from: &mut Decoder<'a>) -> Result<Self, NotCall> {
        let xid = from.u32()?;
        if from.i32()? != CALL {
            return Err(NotCall::Malformed);
        }
        if from.u32()? != RPC_VERSION {
            return Err(NotCall::OtherVersion { xid });
        }
        let (program, version, procedure) = (from.u32()?, from.u32()?, from.u32()?);
        let (credential, verifier) = (Auth::decode(from)?, Auth::decode(from)?);
        Ok(Self { xid, program, version, procedure, credential, verifier })
    }

    /// Writes it.
    pub fn encode(&self, to: &mut Encoder) {
        to.u32(self.xid).i32(CALL).u32(RPC_VERSION);
        to.u32(self.program).u32(self.version).u32(self.procedure);
        self.credential.encode(to);
        self.verifier.encode(to);
    }
}

/// The head of a reply. The results follow, if it is a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// That of its call.
    pub xid: u32,
    /// The rest.
    pub body: Body<'a>,
}

/// Whether the server has looked at the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// It has.
    Accepted {
        /// The server's.
        verifier: Auth<'a>,
        /// The program's answer.
        outcome: Outcome,
    },
    /// It speaks other versions of RPC.
    OtherRpc {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// It does not accept the credential, for a reason of RFC 5531's `auth_stat`.
    Unauthenticated(i32),
}

/// The answer to a call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The results follow.
    Success,
    /// There is no such program here.
    NoProgram,
    /// There are other versions of it.
    OtherVersion {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments are not of the procedure's type.
    GarbageArguments,
    /// The server has failed.
    SystemError,
    /// A number that RFC 5531 does not name.
    Unknown(i32),
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Success => f.write_str("the call was carried out"),
            Self::NoProgram => f.write_str("there is no such program here"),
            Self::OtherVersion { low, high } => {
                write!(f, "the program is here in versions {low} to {high}")
            }
            Self::NoProcedure => f.write_str("the program has no such procedure"),
            Self::GarbageArguments => f.write_str("the arguments are not of the procedure's type"),
            Self::SystemError => f.write_str("the server has failed"),
            Self::Unknown(other) => write!(f, "outcome {other}, which RFC 5531 does not name"),
        }
    }
}

impl<'a> Reply<'a> {
    /// Reads a head; the results are left.
    pub fn decode(from: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let xid = from.u32()?;
        if from.i32()? != REPLY {
            return Err(Malformed);
        }
        let body = match from.i32()? {
            0 => {
                let verifier = Auth::decode(from)?;
                let outcome = match from.i32()? {
                    0 => Outcome::Success,
                    1 => Outcome::NoProgram,
                    2 => Outcome::OtherVersion { low: from.u32()?, high: from.u32()? },
                    3 => Outcome::NoProcedure,
                    4 => Outcome::GarbageArguments,
                    5 => Outcome::SystemError,
                    other => Outcome::Unknown(other),
                };
                Body::Accepted { verifier, outcome }
            }
            1 => match from.i32()? {
                0 => Body::OtherRpc { low: from.u32()?, high: from.u32()? },
                1 => Body::Unauthenticated(from.i32()?),
                _ => return Err(Malformed),
            },
            _ => return Err(Malformed),
        };
        Ok(Self { xid, body })
    }

    /// Writes it.
    pub fn encode(&self, to: &mut Encoder) {
        to.u32(self.xid).i32(REPLY);
        match &self.body {
            Body::Accepted { verifier, outcome } => {
                verifier.encode(to.i32(0));
                let (number, versions) = match *outcome {
                    Outcome::Success => (0, None),
                    Outcome::NoProgram => (1, None),
                    Outcome::OtherVersion { low, high } => (2, Some((low, high))),
                    Outcome::NoProcedure => (3, None),
                    Outcome::GarbageArguments => (4, None),
                    Outcome::SystemError => (5, None),
                    Outcome::Unknown(other) => (other, None),
                };
                to.i32(number);
                if let Some((low, high)) = versions {
                    to.u32(low).u32(high);
                }
            }
            Body::OtherRpc { low, high } => {
                to.i32(1).i32(0).u32(*low).u32(*high);
            }
            Body::Unauthenticated(reason) => {
                to.i32(1).i32(1).i32(*reason);
            }
        }
    }
}
