//! `roadstead org …`, `member …`, `token …`.

use anyhow::Result;
use base_ids::{Slug, UserId};
use fleet_client::Client;
use fleet_model::{CreateMember, CreateToken, Email};
use jiff::Timestamp;

use super::connect;
use super::exit::Mistake;
use super::output::{Columns, age, many, one, say};
use crate::cli::{Connection, Member, Org, Output, Token};

const ORGANIZATIONS: Columns<fleet_model::Organization> =
    Columns { names: &["NAME", "AGE"], row: |org| vec![org.name.to_string(), age(org.created_at)] };

const MEMBERS: Columns<fleet_model::Member> = Columns {
    names: &["EMAIL", "NAME", "ROLE", "STATE", "AGE"],
    row: |member| {
        vec![
            member.user.email.to_string(),
            member.user.name.clone(),
            member.role.as_str().to_owned(),
            if member.invited { "invited" } else { "active" }.to_owned(),
            age(member.created_at),
        ]
    },
};

const TOKENS: Columns<fleet_model::ApiToken> = Columns {
    names: &["ID", "ROLE", "ORGANISATION", "CLUSTER", "EXPIRES", "DESCRIPTION"],
    row: |token| {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            token.id.clone(),
            token.role.as_str().to_owned(),
            or_dash(token.organization.as_ref().map(ToString::to_string)),
            or_dash(token.cluster.as_ref().map(ToString::to_string)),
            expiry(token.expires_at),
            token.description.clone(),
        ]
    },
};

fn expiry(at: Option<Timestamp>) -> String {
    match at {
        None => "never".to_owned(),
        Some(at) if at <= Timestamp::now() => format!("{at} (expired)"),
        Some(at) => at.to_string(),
    }
}

const CREATED: Columns<fleet_model::CreatedToken> =
    Columns { names: &["SECRET"], row: |made| vec![made.secret.clone()] };

pub async fn org(connection: &Connection, command: Org) -> Result<()> {
    let client = connect(connection)?.client;
    match command {
        Org::Create { name, shown } => {
            one(shown.output, &client.create_organization(&name).await?, &ORGANIZATIONS)
        }
        Org::List { shown } => many(shown.output, &client.organizations().await?, &ORGANIZATIONS),
        Org::Get { name, shown } => one(shown.output, &client.organization(&name).await?, &ORGANIZATIONS),
        Org::Delete { name } => {
            client.delete_organization(&name).await?;
            Ok(say(&format!("organisation {name} deleted"))?)
        }
    }
}

pub async fn member(connection: &Connection, command: Member) -> Result<()> {
    let fleet = connect(connection)?;
    let client = &fleet.client;
    match command {
        Member::Create { email, role, of, shown } => {
            let made = client.create_member(&fleet.org(&of)?, &CreateMember { email, role }).await?;
            one(shown.output, &made, &MEMBERS)?;
            if let Some(invitation) = made.invitation.filter(|_| shown.output == Output::Table) {
                say(&format!("\nHand this to them; it works once, for a week:\n{invitation}"))?;
            }
            Ok(())
        }
        Member::List { of, shown } => many(shown.output, &client.members(&fleet.org(&of)?).await?, &MEMBERS),
        Member::Update { email, role, of, shown } => {
            let org = fleet.org(&of)?;
            let user = find(client, &org, &email).await?;
            one(shown.output, &client.update_member(&org, user, role).await?, &MEMBERS)
        }
        Member::Delete { email, of } => {
            let org = fleet.org(&of)?;
            let user = find(client, &org, &email).await?;
            client.delete_member(&org, user).await?;
            Ok(say(&format!("{email} is no member of {org} any more"))?)
        }
    }
}

async fn find(client: &Client, org: &Slug, email: &Email) -> Result<UserId> {
    let members = client.members(org).await?;
    match members.into_iter().find(|member| member.user.email == *email) {
        Some(member) => Ok(member.user.id),
        None => Err(Mistake::NotFound(format!("{email} is no member of {org}")).into()),
    }
}

pub async fn token(connection: &Connection, command: Token) -> Result<()> {
    let client = connect(connection)?.client;
    match command {
        Token::Create { description, role, org, cluster, expires_in_seconds, output } => {
            let cluster = cluster.map(|cluster| cluster.to_string());
            let request = CreateToken { description, role, organization: org, cluster, expires_in_seconds };
            let made = client.create_token(&request).await?;
            if output == Output::Table {
                // Nothing else, so that it can be written into a file.
                return Ok(say(&made.secret)?);
            }
            one(output, &made, &CREATED)
        }
        Token::Get { id, shown } => one(shown.output, &client.token(&id).await?, &TOKENS),
        Token::List { org, shown } => many(shown.output, &client.tokens(org.as_ref()).await?, &TOKENS),
        Token::Delete { id } => {
            client.delete_token(&id).await?;
            Ok(say(&format!("token {id} deleted"))?)
        }
    }
}
