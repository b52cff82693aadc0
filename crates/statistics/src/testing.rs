//! Databases of statistics on the servers for tests.

use crate::database::{Database, Settings};
pub(crate) use tidegate_sql::testing::{Kind, Server, until};

pub(crate) trait Databases {
    /// Settings of a new, empty database.
    async fn create(&self, name: &str) -> Settings;

    async fn database(&self, name: &str) -> Database;
}

impl Databases for Server {
    async fn create(&self, name: &str) -> Settings {
        Settings::new(self.create_database(name).await)
    }

    async fn database(&self, name: &str) -> Database {
        Database::open(self.create(name).await).await.unwrap()
    }
}
