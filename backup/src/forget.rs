//! A history that nobody writes any more is removed.
//!
//! Manifests go before objects, but for the newest one: with it a removal that was cut off is found
//! again. Its base lacks objects meanwhile, and does not count.

use crate::{Base, Error, Key, Place, Result, place::Names};

/// A history as it is before its removal.
#[derive(Clone, Debug)]
pub struct Forgotten {
    names: Names,
    /// The newest base that the key opens.
    pub newest: Base,
    /// The oldest base that the key opens.
    pub oldest: Base,
    /// Number of manifests.
    pub bases: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of all manifests and objects.
    pub bytes: u64,
}

impl Place {
    /// Looks at a history that is to be removed. A key that opens a base of it must be at hand.
    ///
    /// # Errors
    /// [`Error::NoBase`] for a history without bases; or as [`Place::bases`].
    pub async fn forgotten(&self, key: &Key, history: &str) -> Result<Forgotten> {
        let none = || Error::NoBase(format!("of history {history} is there"));
        let bases = self.bases(key, Some(history)).await?;
        let newest = bases.last().ok_or_else(none)?.clone();
        // A file system has a random id, as a history has: another one does not have the same.
        let mut same = bases.into_iter().filter(|base| base.names == newest.names);
        let oldest = same.next().ok_or_else(none)?;
        let names = newest.names.clone();
        let manifests = self.list(&names.bases()).await?;
        let objects = self.list(&names.objects()).await?;
        let bytes = manifests.values().chain(objects.values()).map(|listed| listed.bytes).sum();
        let (bases, objects) = (manifests.len() as u64, objects.len() as u64);
        Ok(Forgotten { names, newest, oldest, bases, objects, bytes })
    }

    /// Removes the bases and objects of a history.
    ///
    /// # Errors
    /// When the store fails: the same removal can be begun again.
    pub async fn forget(&self, forgotten: &Forgotten) -> Result<()> {
        let names = &forgotten.names;
        let newest = names.base(forgotten.newest.manifest.number);
        for base in self.list(&names.bases()).await?.into_keys() {
            let name = format!("{}/{base}", names.bases());
            if name != newest {
                self.delete(&name).await?;
            }
        }
        for object in self.list(&names.objects()).await?.into_keys() {
            self.delete(&names.object(&object)).await?;
        }
        self.delete(&newest).await
    }
}
