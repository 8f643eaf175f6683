//! VMMC for C: `include/vmmc.h`, whose comments are the contract. Objects are boxes that the program frees.

// A body that does nothing but call is one line.
#![allow(missing_docs, clippy::unit_arg)]

use crate::{Bound, Buffer, Combining, Config, Error, Exporting, Mirror, Notification, Proxy};
use crate::{Rights, Sends, Users, Vmmc};
use core::ffi::{c_char, c_int, c_void};
use hamlyn::job::{Job, JobError};
use hamlyn::{Access, NodeId};
use hamlyn_clan::calls;
use hamlyn_clan::face::{self, Given, In, Kept, Many, limit, misuse};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The name under which a rank's name is put.
const RANK: &str = "vmmc";

/// A pointer to the program's structure; null is found by `get`.
type InOut<'a, T> = Option<&'a mut T>;

pub struct CVmmc(Vmmc, Option<Job>);
pub struct CBuffer(Buffer, usize);
pub struct CProxy(Proxy, OnceLock<Sends>);

pub enum CBound {
    Store(Bound),
    Tracked(Mirror),
}

#[repr(C)]
pub struct CNotification {
    buffer: [c_char; 128],
    word: u32,
}

#[repr(C)]
pub struct CPermissions {
    users: c_int,
    rights: c_int,
    list: Many<u32>,
    count: usize,
    notifications: u32,
}

#[repr(C)]
pub struct CBinding {
    engine: c_int,
    memory: *mut c_void,
    combines: c_int,
    sub_page: u32,
    timer_us: u32,
    notifies: c_int,
    word: u32,
    ms: c_int,
}

type Look = unsafe extern "C" fn(*mut c_void) -> c_int;
type Handler = unsafe extern "C" fn(*const CNotification, *mut c_void);

impl CNotification {
    fn put(&mut self, from: &Notification) {
        self.word = from.word;
        let name = Many(self.buffer.as_mut_ptr()).put_text(&from.buffer, self.buffer.len());
        debug_assert!(name.is_ok());
    }
}

fn refused(e: impl core::fmt::Display) -> Error {
    Error::Refused(e.to_string())
}

fn exporting(said: &CPermissions) -> Result<Exporting, Error> {
    let users = match said.users {
        0 => Users::Same,
        1 => Users::All,
        2 => Users::These(said.list.of(said.count)?.to_vec()),
        _ => return misuse("users: VMMC_SAME, VMMC_ALL or VMMC_LIST"),
    };
    let rights = match said.rights {
        0 => Rights::ReadWrite,
        1 => Rights::Read,
        2 => Rights::Write,
        _ => return misuse("rights: VMMC_READ_WRITE, VMMC_READ or VMMC_WRITE"),
    };
    Ok(Exporting { users, rights, notifications: said.notifications })
}

impl CVmmc {
    fn job(&self) -> Result<&Job, Error> {
        self.1.as_ref().map_or_else(|| misuse("a call for vmmc_join's"), Ok)
    }
}

impl CProxy {
    fn sends(&self) -> Result<&Sends, Error> {
        if self.1.get().is_none() {
            let _ = self.1.set(self.0.sends()?);
        }
        self.1.get().map_or_else(|| misuse("no sends"), Ok)
    }
}

impl CBound {
    #[inline]
    fn store(&mut self) -> Result<&mut Bound, Error> {
        match self {
            Self::Store(bound) => Ok(bound),
            Self::Tracked(_) => misuse("tracked memory is stored to by the program itself"),
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        match self {
            Self::Store(bound) => bound.flush(),
            Self::Tracked(mirror) => mirror.flush(),
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn vmmc_error() -> c_int {
    face::number()
}

#[unsafe(no_mangle)]
pub extern "C" fn vmmc_error_text() -> *const c_char {
    face::text()
}

calls! { Option<Box<CVmmc>>:
    fn vmmc_open() { Ok(CVmmc(Vmmc::new(Config::from_env()?)?, None)) }

    fn vmmc_join(rank: InOut<c_int>, size: InOut<c_int>, ms: c_int) {
        let (rank, size) = (rank.get()?, size.get()?);
        let job = Job::from_env().map_err(refused)?;
        let vmmc = Vmmc::at(job.manager(), Config::from_env()?)?;
        // With the node's id, which nobody can guess and take first.
        let name = format!("vmmc.{:016x}", job.manager().id().0);
        vmmc.serve(&name, Access::SameUser)?;
        job.put(RANK, name.as_bytes()).map_err(refused)?;
        job.fence(limit(ms)).map_err(refused)?;
        (*rank, *size) = (job.rank() as c_int, job.size() as c_int);
        Ok(CVmmc(vmmc, Some(job)))
    }
}

calls! { Option<Box<CBuffer>>:
    fn vmmc_export(vmmc: In<CVmmc>, name: Many<c_char>, bytes: u64, permissions: In<CPermissions>) {
        let exporting = permissions.map_or(Ok(Exporting::default()), exporting)?;
        let buffer = vmmc.get()?.0.export(name.text()?, bytes, exporting)?;
        let address = buffer.region().address().map_or(0, |address| address as usize);
        Ok(CBuffer(buffer, address))
    }
}

calls! { Option<Box<CProxy>>:
    fn vmmc_import(vmmc: In<CVmmc>, program: Many<c_char>, buffer: Many<c_char>, ms: c_int) {
        let proxy = vmmc.get()?.0.import(program.text()?, buffer.text()?, limit(ms))?;
        Ok(CProxy(proxy, OnceLock::new()))
    }

    fn vmmc_import_rank(vmmc: In<CVmmc>, rank: c_int, buffer: Many<c_char>, ms: c_int) {
        let vmmc = vmmc.get()?;
        let name = vmmc.job()?.get(rank as u32, RANK).map_err(refused)?;
        let name = String::from_utf8(name).map_err(refused)?;
        let node = name.strip_prefix("vmmc.").and_then(|id| u64::from_str_radix(id, 16).ok());
        let proxy = vmmc.0.import_of(node.map(NodeId), &name, buffer.text()?, limit(ms))?;
        Ok(CProxy(proxy, OnceLock::new()))
    }
}

calls! { Option<Box<CBound>>:
    fn vmmc_bind(proxy: In<CProxy>, at: u64, bytes: usize, binding: In<CBinding>) {
        let (proxy, said) = (&proxy.get()?.0, binding.get()?);
        let timer = (said.timer_us > 0).then(|| Duration::from_micros(said.timer_us.into()));
        let sub_page = match (said.combines, said.sub_page) {
            (0, _) => 0,
            (_, 0) => Combining::default().sub_page,
            (_, sub_page) => sub_page,
        };
        let notifies = (said.notifies != 0).then_some(said.word);
        let combining = Combining { sub_page, timer };
        Ok(match said.engine {
            0 => CBound::Store(proxy.bind(at, bytes, combining, notifies, limit(said.ms))?),
            1 if said.memory.is_null() => return misuse("no memory to be tracked"),
            // SAFETY: the memory stays until vmmc_unbind, by the header.
            1 => CBound::Tracked(unsafe {
                proxy.mirror(at, said.memory.cast(), bytes, limit(said.ms))
            }?),
            _ => return misuse("engine: VMMC_STORE or VMMC_TRACKED"),
        })
    }
}

calls! { *mut c_void:
    fn vmmc_address(buffer: In<CBuffer>) { Ok(buffer.get()?.1 as *mut u8) }
    fn vmmc_bound_memory(bound: InOut<CBound>) { Ok(bound.get()?.store()?.bytes().as_ptr().cast_mut()) }
}

calls! { u64:
    fn vmmc_bytes(proxy: In<CProxy>) { Ok(proxy.get()?.0.bytes()) }

    fn vmmc_runs(bound: In<CBound>) {
        Ok(match bound.get()? {
            CBound::Store(bound) => bound.counts().1,
            CBound::Tracked(mirror) => mirror.counts().1,
        })
    }
}

calls! { i64:
    fn vmmc_send_async(to: In<CProxy>, offset: u64, buffer: In<CBuffer>, at: u64, bytes: u64) {
        to.get()?.sends()?.start(offset, &buffer.get()?.0, at, bytes)
    }
}

calls! { c_int: // An object is freed by being dropped.
    fn vmmc_close(vmmc: Option<Box<CVmmc>>) {
        match vmmc {
            Some(vmmc) if vmmc.0.is_own_thread() => {
                // The program has it still.
                core::mem::forget(vmmc);
                misuse("vmmc_close in the handler of notifications, which runs on its thread")
            }
            vmmc => Ok(drop(vmmc)),
        }
    }
    fn vmmc_unexport(buffer: Option<Box<CBuffer>>) { Ok(drop(buffer)) }
    fn vmmc_unimport(proxy: Option<Box<CProxy>>) { Ok(drop(proxy)) }
    fn vmmc_unbind(bound: Option<Box<CBound>>) { bound.map_or(Ok(()), |mut bound| bound.flush()) }

    fn vmmc_fence(vmmc: In<CVmmc>, ms: c_int) {
        let (vmmc, began) = (vmmc.get()?, Instant::now());
        let job = vmmc.job()?;
        loop {
            // Others may import meanwhile, and are answered here.
            vmmc.0.poll()?;
            match job.fence(Some(Duration::from_millis(2))) {
                Ok(()) => return Ok(()),
                Err(JobError::Missing { .. })
                    if limit(ms).is_none_or(|limit| began.elapsed() < limit) => {}
                Err(e) => return Err(refused(e)),
            }
        }
    }

    fn vmmc_serve(vmmc: In<CVmmc>, name: Many<c_char>, users: c_int) {
        vmmc.get()?.0.serve(name.text()?, match users {
            0 => Access::SameUser,
            1 => Access::Anyone,
            _ => return misuse("users: VMMC_SAME or VMMC_ALL"),
        })
    }

    fn vmmc_take_notifications(buffer: In<CBuffer>, takes: c_int) {
        Ok(buffer.get()?.0.take_notifications(takes != 0))
    }

    fn vmmc_check(proxy: In<CProxy>) { proxy.get()?.0.check() }

    fn vmmc_send(to: In<CProxy>, offset: u64, data: Many<u8>, bytes: usize, ms: c_int) {
        to.get()?.0.send(offset, data.of(bytes)?, limit(ms))
    }

    fn vmmc_send_notify(to: In<CProxy>, offset: u64, data: Many<u8>, bytes: usize, word: u32, ms: c_int) {
        to.get()?.0.send_notify(offset, data.of(bytes)?, word, limit(ms))
    }

    fn vmmc_get(from: In<CProxy>, offset: u64, to: Many<u8>, bytes: usize, ms: c_int) {
        from.get()?.0.get(offset, to.room(bytes)?, limit(ms))
    }

    fn vmmc_test(proxy: In<CProxy>, number: i64) {
        let proxy = proxy.get()?;
        proxy.0.vmmc().poll()?;
        let result = proxy.sends()?.result(number.cast_unsigned());
        result.map_or(Ok(false), |result| result.map(|()| true))
    }

    fn vmmc_wait_sent(proxy: In<CProxy>, number: i64, ms: c_int) {
        proxy.get()?.sends()?.wait(number.cast_unsigned(), limit(ms))
    }

    fn vmmc_poll(vmmc: In<CVmmc>) { vmmc.get()?.0.poll() }
    fn vmmc_wait(vmmc: In<CVmmc>, ms: c_int) { vmmc.get()?.0.wait(limit(ms)) }

    fn vmmc_wait_until(vmmc: In<CVmmc>, look: Option<Look>, data: *mut c_void, ms: c_int) {
        let look = look.get()?;
        // SAFETY: the program's function, by the header.
        vmmc.get()?.0.wait_until(limit(ms), || unsafe { look(data) } != 0)
    }

    fn vmmc_take_notification(vmmc: In<CVmmc>, to: InOut<CNotification>) {
        let (vmmc, to) = (vmmc.get()?, to.get()?);
        Ok(vmmc.0.take_notification().map(|taken| to.put(&taken)).is_some())
    }

    fn vmmc_start_thread(vmmc: In<CVmmc>, handler: Option<Handler>, data: *mut c_void) {
        let data = Kept(data);
        let handler = handler.map(|handler| -> crate::vmmc::Handler {
            Box::new(move |taken| {
                let data: &Kept<c_void> = &data;
                let mut told = CNotification { buffer: [0; 128], word: 0 };
                told.put(&taken);
                // SAFETY: the program's function, by the header.
                unsafe { handler(&raw const told, data.0) }
            })
        });
        vmmc.get()?.0.start(handler)
    }

    fn vmmc_block(vmmc: In<CVmmc>) { Ok(vmmc.get()?.0.block()) }
    fn vmmc_unblock(vmmc: In<CVmmc>) { Ok(vmmc.get()?.0.unblock()) }

    fn vmmc_set_limit(bound: InOut<CBound>, ms: c_int) {
        Ok(bound.get()?.store()?.set_limit(limit(ms)))
    }

    fn vmmc_st32(to: InOut<CBound>, offset: usize, value: u32) { to.get()?.store()?.store_u32(offset, value) }
    fn vmmc_st64(to: InOut<CBound>, offset: usize, value: u64) { to.get()?.store()?.store_u64(offset, value) }

    fn vmmc_try_st32(to: InOut<CBound>, offset: usize, value: u32) {
        to.get()?.store()?.try_store(offset, &value.to_ne_bytes())
    }

    fn vmmc_try_st64(to: InOut<CBound>, offset: usize, value: u64) {
        to.get()?.store()?.try_store(offset, &value.to_ne_bytes())
    }

    fn vmmc_au_memcpy(to: InOut<CBound>, offset: usize, data: Many<u8>, bytes: usize) {
        to.get()?.store()?.store(offset, data.of(bytes)?)
    }

    fn vmmc_flush(bound: InOut<CBound>) { bound.get()?.flush() }

    fn vmmc_told(bound: InOut<CBound>, offset: usize, data: Many<u8>, bytes: usize) {
        match bound.get()? {
            CBound::Store(_) => misuse("vmmc_told is for tracked memory"),
            CBound::Tracked(mirror) => Ok(mirror.told(offset, data.of(bytes)?)),
        }
    }

    fn vmmc_explain(proxy: In<CProxy>, to: Many<c_char>, size: usize) {
        to.put_text(&proxy.get()?.0.explain()?, size)
    }

    fn vmmc_explain_bound(bound: In<CBound>, to: Many<c_char>, size: usize) {
        to.put_text(&match bound.get()? {
            CBound::Store(bound) => bound.explain()?,
            CBound::Tracked(mirror) => mirror.explain()?,
        }, size)
    }
}
