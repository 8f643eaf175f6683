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
    pub fn let_others_write(&mut self, id: ApertureId) -> Result<(), NoSuchAperture> {
        let exported = self.apertures.exported.get(&id).ok_or(NoSuchAperture::Gone(id))?;
        match &exported.memory {
            Exports::Own(owned) => owned.let_others_write(),
            Exports::Pool => return Err(NoSuchAperture::Pool(id)),
        }
        Ok(())
    }
}
