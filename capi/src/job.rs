//! Jobs: the processes of one parallel program, which find one another (docs/jobs.md).

use crate::boundary::{Copied, bytes, get, guard, h_status, limit, out, text};
use crate::call::{h_client_t, h_server_t};
use crate::endpoint::give;
use crate::node::{config_of, h_job_t, h_node_t, h_setting_t};
use crate::seeds::{h_seed_t, kind_of};
use crate::stream::{Intake, Outflow, h_stream_receiver_t, h_stream_sender_t};
use core::ffi::{c_char, c_void};
use hamlyn::job::{Job, Launcher};
use std::sync::Arc;

/// The launcher that started a rank.
#[repr(C)]
pub enum h_launcher {
    /// Without a launcher: the job has one rank.
    H_LAUNCHER_NONE = 0,
    /// `hamlyn run`.
    H_LAUNCHER_RUN = 1,
    /// A launcher that speaks PMIx: Open MPI's, PRRTE's, Slurm's.
    H_LAUNCHER_PMIX = 2,
    /// A launcher that speaks PMI-1: MPICH's.
    H_LAUNCHER_PMI1 = 3,
}

/// Joins the job that started this process: `hamlyn run`, a launcher that speaks PMIx, or one that
/// speaks PMI-1; without a launcher the job has one rank. Waits until all ranks have joined, at
/// most the setting job_timeout_ms. `settings` is as for h_node_new. If this process has joined
/// already, returns another handle to the same job, whatever the settings. To be freed with
/// h_job_free.
///
/// Errors: H_INVALID, a setting, or the launcher's variables in the environment; H_TIMED_OUT, ranks
/// did not join (the text names them, if the launcher does), or the launcher does not answer;
/// H_CLOSED, the launcher is gone, or a rank has ended; H_MISBEHAVED, the launcher broke its
/// protocol; H_SYSTEM. The process has no job then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_open(
    settings: *const h_setting_t,
    count: usize,
    job: *mut *mut h_job_t,
) -> h_status {
    guard(|| {
        let place = out(job, "job")?;
        let job = Job::with_config(config_of(settings, count)?)?;
        let node = h_node_t::of(job.manager().clone())?;
        place.write(Box::into_raw(Box::new(h_job_t { job, node })));
        Ok(())
    })
}

/// Frees a job. Freeing the last handle tells the launcher that this rank has finished with it.
/// Objects made with the job go on working. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_free(job: *mut h_job_t) {
    guard(|| {
        if job.is_null() {
            return Ok(());
        }
        get(job, "job")?;
        let job = Box::from_raw(job);
        if job.node.fork().is_parent() {
            drop(job);
        } else {
            // It is the parent's.
            core::mem::forget(job);
        }
        Ok(())
    });
}

/// The number of this process, from 0 to one less than h_job_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_rank(job: *mut h_job_t, rank: *mut u32) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(rank, "rank")?);
        place.write(job.job()?.rank());
        Ok(())
    })
}

/// How many ranks the job has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_size(job: *mut h_job_t, size: *mut u32) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(size, "size")?);
        place.write(job.job()?.size());
        Ok(())
    })
}

/// The launcher of this rank: an h_launcher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_launcher(job: *mut h_job_t, launcher: *mut u32) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(launcher, "launcher")?);
        place.write(match job.job()?.launcher() {
            Launcher::None => h_launcher::H_LAUNCHER_NONE,
            Launcher::Run => h_launcher::H_LAUNCHER_RUN,
            Launcher::Pmix => h_launcher::H_LAUNCHER_PMIX,
            Launcher::Pmi1 => h_launcher::H_LAUNCHER_PMI1,
        } as u32);
        Ok(())
    })
}

/// Whether a rank is on this host, so that messages to it go through a ring.
///
/// Errors: H_INVALID, there is no such rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_is_local(
    job: *mut h_job_t,
    rank: u32,
    is_local: *mut bool,
) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(is_local, "is_local")?);
        place.write(job.job()?.is_local(rank)?);
        Ok(())
    })
}

/// The node of the job's end points: another handle to it, to be freed with h_node_free or h_close,
/// before or after the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_node(job: *mut h_job_t, node: *mut *mut h_node_t) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(node, "node")?);
        place.write(Box::into_raw(Box::new(job.node().again()?)));
        Ok(())
    })
}

/// Puts bytes that all other ranks can get with h_job_get after the next h_job_fence. A name is 1
/// to 32 of a-z A-Z 0-9 . _ -, and is put once. The launcher carries the bytes, and limits them:
/// Hydra to 511, `hamlyn run` and PMIx to 32,256.
///
/// Errors: H_INVALID, the name is invalid; H_IN_USE, this rank has put something under it;
/// H_TOO_LONG; H_TIMED_OUT, H_CLOSED, H_MISBEHAVED, the launcher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_put(
    job: *mut h_job_t,
    name: *const c_char,
    data: *const c_void,
    length: usize,
) -> h_status {
    guard(|| {
        let (job, name) = (get(job, "job")?, text(name, "name")?);
        Ok(job.job()?.put(name, bytes(data, length, "data")?)?)
    })
}

/// Gets the bytes that `rank` has put under `name` before the last fence, copied to `buffer`;
/// `length`, which may be null, gets their number.
///
/// Errors: H_NO_SUCH, it has put nothing there; H_TOO_LONG, `length` is written; H_INVALID, there
/// is no such rank; H_TIMED_OUT, H_CLOSED, H_MISBEHAVED, the launcher.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_get(
    job: *mut h_job_t,
    rank: u32,
    name: *const c_char,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let (job, name) = (get(job, "job")?, text(name, "name")?);
        let copied = Copied::new(buffer, capacity, length)?;
        copied.put(&job.job()?.get(rank, name)?)
    })
}

/// Waits at most `timeout_ns` until all ranks have called this as often as this one. Afterwards all
/// ranks can get the bytes put before it. Concurrent calls of several threads are one fence each,
/// in turn: two calls here match two calls of every other rank. A fence goes through the launcher,
/// and is for setting up: use a group's barrier (h_group_barrier) while messages are sent.
///
/// Errors: H_TIMED_OUT, the fence stays begun, and the next call goes on waiting for it: the text
/// names the missing ranks, if the launcher does; H_CLOSED, ranks have ended, or the launcher is
/// gone; H_MISBEHAVED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_fence(job: *mut h_job_t, timeout_ns: i64) -> h_status {
    guard(|| Ok(get(job, "job")?.job()?.fence(limit(timeout_ns))?))
}

/// The stream to a rank, which receives it with h_job_stream_from: waits for that, at most
/// `timeout_ns`. To be freed with h_stream_sender_close or h_stream_sender_free.
///
/// Errors: as h_stream_sender_grow_from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_stream_to(
    job: *mut h_job_t,
    rank: u32,
    timeout_ns: i64,
    sender: *mut *mut h_stream_sender_t,
) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(sender, "sender")?);
        let made = job.job()?.stream_to(rank, limit(timeout_ns))?;
        place.write(give(job.node(), Outflow::still(made))?);
        Ok(())
    })
}

/// The stream from a rank, which grows it with h_job_stream_to at any time. To be freed with
/// h_stream_receiver_close or h_stream_receiver_free.
///
/// Errors: H_INVALID, there is no such rank; H_IN_USE, there is one already; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_stream_from(
    job: *mut h_job_t,
    rank: u32,
    receiver: *mut *mut h_stream_receiver_t,
) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(receiver, "receiver")?);
        let made = job.job()?.stream_from(rank)?;
        place.write(give(job.node(), Intake::still(made))?);
        Ok(())
    })
}

/// This rank's server of calls; every rank may be its client. To be freed with h_server_close or
/// h_server_free.
///
/// Errors: H_IN_USE, there is one already; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_server(job: *mut h_job_t, server: *mut *mut h_server_t) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(server, "server")?);
        let made = Arc::new(job.job()?.server()?);
        place.write(give(job.node(), made)?);
        Ok(())
    })
}

/// A client of a rank's h_job_server: waits until the rank has one, at most `timeout_ns`. To be
/// freed with h_client_close or h_client_free.
///
/// Errors: as h_client_grow_from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_client(
    job: *mut h_job_t,
    rank: u32,
    timeout_ns: i64,
    client: *mut *mut h_client_t,
) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(client, "client")?);
        let made = Arc::new(job.job()?.client(rank, limit(timeout_ns))?);
        place.write(give(job.node(), made)?);
        Ok(())
    })
}

/// A seed from which a sender grows the end point that `rank` offers, now or later, under `name`
/// and as `kind`, an h_kind: for uses that h_stream_sender_grow_from and the like do not cover. A
/// secret of the job.
///
/// Errors: H_INVALID, there is no such rank or kind, or the name is invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_seed_of(
    job: *mut h_job_t,
    rank: u32,
    kind: u32,
    name: *const c_char,
    seed: *mut h_seed_t,
) -> h_status {
    guard(|| {
        let (job, name, place) = (get(job, "job")?, text(name, "name")?, out(seed, "seed")?);
        place.write(job.job()?.seed_of(rank, kind_of(kind)?, name)?.into());
        Ok(())
    })
}

/// The launcher that was found, why not another, the number of ranks on this host, and those of
/// them to which this rank has made links: a text, copied to `buffer` and followed by a zero byte;
/// `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_job_explain(
    job: *mut h_job_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let job = get(job, "job")?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        copied.put_text(&job.job()?.explain())
    })
}
