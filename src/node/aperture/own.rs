//! Apertures over pages of the application's own, and with several writers.

use super::{ApertureId, ExportError, Exports, NoSuchAperture};
use crate::interface::LinkId;
use crate::node::Node;
use crate::os::aperture::{ApertureAccess, Owned};
use crate::os::memory::AperturePages;

impl Node {
    /// [`export`](Self::export)s pages of the application's own: both processes see the same bytes,
    /// and so does the application, at its own addresses. All of them are charged to this process
    /// now. From here on nobody changes the size of the file, and if `access` is read-only, nobody
    /// maps it for writing: the application's mapping that exists already goes on writing.
    ///
    /// When the aperture has been revoked, the file and the application's mappings stay, but the
    /// holder may still have them: a revocation takes nothing away from a process that mapped the
    /// application's file, and its later stores show there. To part from it, copy the bytes into
    /// another file. [`reclaim_aperture`](Self::reclaim_aperture) makes such a copy. The bytes count
    /// as exported until no process has the file, the application included.
    ///
    /// [`ExportError::Os`] if the file's seals forbid those that an aperture needs. On an error the
    /// file may have them already.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-own-pages-{}", std::process::id()));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// use hamlyn::{Accept, Access, ApertureAccess, AperturePages, Node};
    /// # use std::time::Duration;
    /// # let limit = Some(Duration::from_secs(10));
    /// let mut owner = Node::with_config(config.clone())?;
    /// owner.serve("pages", Access::SameUser, Accept::Automatic(vec![]))?;
    /// let mut holder = Node::with_config(config)?; // Usually another process.
    /// holder.connect("pages", b"", limit)?;
    /// # while owner.links().count() == 0 { owner.wait(limit)?; }
    /// let link = owner.links().next().expect("the holder has connected");
    /// # use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    /// let file = memfd_create("pages", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    /// ftruncate(&file, 4096)?;
    /// // SAFETY: no other process has the file, and no reference to its bytes is made.
    /// let pages = unsafe { AperturePages::of_file(&file) }?;
    /// let exported = owner.export_pages(link, pages, ApertureAccess::ReadWrite)?;
    /// # while holder.apertures_held().count() == 0 { holder.wait(limit)?; }
    /// let held = holder.apertures_held().next().expect("the owner has exported");
    /// holder.aperture(held)?.write_u64(8, 7)?;
    /// assert_eq!(owner.aperture_view(exported)?.read_u64(8)?, 7);
    /// # drop((owner, holder));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn export_pages(
        &mut self,
        link: LinkId,
        pages: AperturePages,
        access: ApertureAccess,
    ) -> Result<ApertureId, ExportError> {
        let bytes = pages.bytes();
        self.export_made(link, bytes, access, |reservation| {
            Owned::of_pages(pages, access, reservation)
        })
    }

    /// Lets a read-write aperture have several holders, by [`export_also`](Self::export_also): for
    /// peers that trust one another. Each can change and lose the others' bytes at any time, and a
    /// holder from which it is revoked alone may go on writing until the last has lost it: so take
    /// it from all at once, by [`reclaim_aperture`](Self::reclaim_aperture).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-others-write-{}", std::process::id()));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// use hamlyn::{Accept, Access, ApertureAccess, Node};
    /// # use std::time::Duration;
    /// # let limit = Some(Duration::from_secs(10));
    /// let mut owner = Node::with_config(config.clone())?;
    /// owner.serve("pages", Access::SameUser, Accept::Automatic(vec![]))?;
    /// let mut holder = Node::with_config(config)?; // Usually another process.
    /// holder.connect("pages", b"", limit)?;
    /// # while owner.links().count() == 0 { owner.wait(limit)?; }
    /// let link = owner.links().next().expect("the holder has connected");
    /// let exported = owner.export(link, 4096, ApertureAccess::ReadWrite)?;
    /// owner.let_others_write(exported)?;
    /// // From now on `owner.export_also(exported, other)` adds a holder that may write, too.
    /// # drop((owner, holder));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn let_others_write(&mut self, id: ApertureId) -> Result<(), NoSuchAperture> {
        let exported = self.apertures.exported.get(&id).ok_or(NoSuchAperture::Gone(id))?;
        match &exported.memory {
            Exports::Own(owned) => owned.let_others_write(),
            Exports::Pool => return Err(NoSuchAperture::Pool(id)),
        }
        Ok(())
    }
}
