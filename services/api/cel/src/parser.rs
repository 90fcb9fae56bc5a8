//! Tokens to a tree, macros expanded on the way.
//!
//! One pass of operator precedence with a stack of its own, so that the machine's stack grows only with
//! brackets, of which there is a limit. The first syntax error ends the parse; what the grammar allows but
//! the language does not (a reserved word as a name) is reported and parsed on.

use std::sync::Arc;

use crate::ast::{Entry, Expr, Id, Kind, StructField, op};
use crate::issue::{Issue, MAX_ISSUES, Source};
use crate::lexer::{Lexeme, Token, lex};
use crate::macros;
use crate::stack::deep;
use crate::unescape::unescape;
use crate::value::{Text, Value};

/// Code points of the longest expression, as cel-go.
pub const MAX_SOURCE: usize = 100_000;
/// Brackets within brackets, and operators upon operators, as cel-go.
const MAX_RECURSION: u16 = 250;
/// Levels of the tree with macros expanded. What people write has a few dozen.
pub(crate) const MAX_DEPTH: u16 = 500;
/// Nodes of the tree: `optMap` repeats its target, so a chain of them would double without end.
const MAX_NODES: usize = 200_000;

const STARTS: &str = "'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER";

const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Which macros there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    /// `cel.bind`, which Kubernetes does not have.
    pub bindings: bool,
}

pub(crate) struct Parsed {
    pub expr: Expr,
    /// Where each node is, by id, in code points.
    pub places: Vec<u32>,
}

/// Nothing sensible can follow: the issue is noted already.
pub(crate) struct Stop;

pub(crate) struct Parser<'s> {
    source: &'s Arc<Source>,
    tokens: Vec<Lexeme<'s>>,
    next: usize,
    nesting: u16,
    places: Vec<u32>,
    issues: Vec<Issue>,
    dialect: Dialect,
}

pub(crate) fn parse(source: &Arc<Source>, dialect: Dialect) -> Result<Parsed, Vec<Issue>> {
    let size = source.text.chars().count();
    if size > MAX_SOURCE {
        let message = format!("expression code point size exceeds limit: size: {size}, limit {MAX_SOURCE}");
        return Err(vec![Issue::whole(source, message)]);
    }
    let (tokens, issues) = lex(source);
    let mut parser = Parser { source, tokens, next: 0, nesting: 0, places: vec![0], issues, dialect };
    let expr = parser.expr(false).and_then(|expr| {
        let left = parser.peek();
        if left.token == Token::End {
            return Ok(expr);
        }
        let single = parser.tokens.get(parser.next + 1).is_none_or(|after| after.token == Token::End);
        let what = if single { "extraneous" } else { "mismatched" };
        Err(parser.syntax(left, format!("{what} input '{}' expecting <EOF>", left.text)))
    });
    match expr {
        Ok(expr) if parser.issues.is_empty() => Ok(Parsed { expr, places: parser.places }),
        _ => Err(parser.issues),
    }
}

/// Binds tighter the higher. The three of logic and comparison are one level each, as in the grammar.
fn precedence(sign: &str) -> Option<(u8, &'static str)> {
    Some(match sign {
        "||" => (1, op::OR),
        "&&" => (2, op::AND),
        "<" => (3, op::LESS),
        "<=" => (3, op::LESS_EQUALS),
        ">" => (3, op::GREATER),
        ">=" => (3, op::GREATER_EQUALS),
        "==" => (3, op::EQUALS),
        "!=" => (3, op::NOT_EQUALS),
        "in" => (3, op::IN),
        "+" => (4, op::ADD),
        "-" => (4, op::SUBTRACT),
        "*" => (5, op::MULTIPLY),
        "/" => (5, op::DIVIDE),
        "%" => (5, op::MODULO),
        _ => return None,
    })
}

struct Pending {
    level: u8,
    function: &'static str,
    id: Id,
}

impl<'s> Parser<'s> {
    fn peek(&self) -> Lexeme<'s> {
        self.tokens[self.next.min(self.tokens.len() - 1)]
    }
    fn is(&self, sign: &str) -> bool {
        matches!(self.peek().token, Token::Sign(found) if found == sign)
    }
    fn take(&mut self) -> Lexeme<'s> {
        let lexeme = self.peek();
        self.next += 1;
        lexeme
    }
    fn eat(&mut self, sign: &str) -> Option<Lexeme<'s>> {
        self.is(sign).then(|| self.take())
    }
    /// The bracket that must come now.
    fn close(&mut self, sign: &str) -> Result<(), Stop> {
        if self.eat(sign).is_some() {
            return Ok(());
        }
        let found = self.peek();
        let after = self.tokens.get(self.next + 1).map(|after| after.token);
        let message = if found.token == Token::End {
            format!("missing '{sign}' at '<EOF>'")
        } else if matches!(after, Some(Token::Sign(next)) if next == sign) {
            format!("extraneous input '{}' expecting '{sign}'", found.text)
        } else {
            format!("mismatched input '{}' expecting '{sign}'", found.text)
        };
        Err(self.syntax(found, message))
    }

    pub fn id_at(&mut self, offset: u32) -> Id {
        self.places.push(offset);
        Id::try_from(self.places.len() - 1).unwrap_or(Id::MAX)
    }
    pub fn place(&self, id: Id) -> u32 {
        self.places.get(id as usize).copied().unwrap_or(0)
    }
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }
    pub fn report(&mut self, offset: u32, message: impl Into<String>) {
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(Issue::at(self.source, offset, message));
        }
    }
    fn syntax(&mut self, at: Lexeme<'s>, message: String) -> Stop {
        self.report(at.at, format!("Syntax error: {message}"));
        Stop
    }
    /// A node, unless the tree has become too large.
    pub fn node(&mut self, id: Id, kind: Kind) -> Result<Expr, Stop> {
        let expr = Expr::new(id, kind);
        if expr.depth > MAX_DEPTH || self.places.len() > MAX_NODES {
            self.issues.push(Issue::whole(self.source, "max recursion depth exceeded"));
            return Err(Stop);
        }
        Ok(expr)
    }
    /// As `node`, for what cel-go counts towards its limit.
    fn counted(&mut self, id: Id, kind: Kind) -> Result<Expr, Stop> {
        let mut expr = self.node(id, kind)?;
        self.count(&mut expr)?;
        Ok(expr)
    }
    fn count(&mut self, expr: &mut Expr) -> Result<(), Stop> {
        expr.visits += 1;
        if expr.visits > MAX_RECURSION {
            self.issues.push(Issue::whole(self.source, "max recursion depth exceeded"));
            return Err(Stop);
        }
        Ok(())
    }

    /// `closes`: whether a closing bracket could have come instead, which the message then says.
    fn expr(&mut self, closes: bool) -> Result<Expr, Stop> {
        self.nesting += 1;
        if self.nesting > MAX_RECURSION {
            let message = format!("expression recursion limit exceeded: {MAX_RECURSION}");
            self.issues.push(Issue::whole(self.source, message));
            return Err(Stop);
        }
        let expr = deep(|| self.whole(closes));
        self.nesting -= 1;
        expr
    }

    fn whole(&mut self, closes: bool) -> Result<Expr, Stop> {
        let condition = self.binary(closes)?;
        match self.eat("?") {
            None => Ok(condition),
            Some(mark) => {
                let id = self.id_at(mark.at);
                let truthy = self.binary(false)?;
                self.close(":")?;
                let falsy = self.expr(false)?;
                let args = vec![condition, truthy, falsy];
                self.counted(id, Kind::Call { function: op::CONDITIONAL.into(), target: None, args })
            }
        }
    }

    fn binary(&mut self, closes: bool) -> Result<Expr, Stop> {
        let mut operands = vec![self.unary(closes)?];
        let mut pending: Vec<Pending> = Vec::new();
        loop {
            let found = match self.peek().token {
                Token::Sign(sign) => precedence(sign),
                _ => None,
            };
            let level = found.map_or(0, |(level, _)| level);
            while let Some(top) = pending.last() {
                // A run of && or || is kept together, to be balanced when it ends.
                let in_run = found.is_some_and(|(_, function)| level <= 2 && function == top.function);
                if top.level < level || in_run || (top.level == level && level == 0) {
                    break;
                }
                self.reduce(&mut operands, &mut pending)?;
            }
            let Some((level, function)) = found else { break };
            let at = self.take().at;
            let id = self.id_at(at);
            pending.push(Pending { level, function, id });
            operands.push(self.unary(false)?);
        }
        operands.pop().ok_or(Stop)
    }

    fn reduce(&mut self, operands: &mut Vec<Expr>, pending: &mut Vec<Pending>) -> Result<(), Stop> {
        let Some(last) = pending.last() else { return Ok(()) };
        let function = last.function;
        let run = match last.level {
            1 | 2 => pending.iter().rev().take_while(|one| one.function == function).count(),
            _ => 1,
        };
        let ids: Vec<Id> = pending.split_off(pending.len() - run).into_iter().map(|one| one.id).collect();
        let mut terms = operands.split_off(operands.len() - run - 1).into_iter();
        let whole = if run == 1 {
            let args: Vec<Expr> = terms.collect();
            let call = Kind::Call { function: function.into(), target: None, args };
            if matches!(function, op::AND | op::OR) {
                self.node(ids[0], call)?
            } else {
                self.counted(ids[0], call)?
            }
        } else {
            self.balance(&function.into(), &ids, &mut terms)?
        };
        operands.push(whole);
        Ok(())
    }

    /// `a && b && c && d` as a tree no deeper than it must be.
    fn balance(
        &mut self,
        function: &Arc<str>,
        ids: &[Id],
        terms: &mut dyn Iterator<Item = Expr>,
    ) -> Result<Expr, Stop> {
        if ids.is_empty() {
            return terms.next().ok_or(Stop);
        }
        let mid = ids.len() / 2;
        let left = self.balance(function, &ids[..mid], terms)?;
        let right = self.balance(function, &ids[mid + 1..], terms)?;
        self.node(ids[mid], Kind::Call { function: function.clone(), target: None, args: vec![left, right] })
    }

    fn unary(&mut self, closes: bool) -> Result<Expr, Stop> {
        let first = self.peek();
        let function = match first.token {
            Token::Sign("!") => op::NOT,
            Token::Sign("-") => op::NEGATE,
            _ => {
                let primary = self.primary(closes)?;
                return self.members(primary);
            }
        };
        let Token::Sign(sign) = first.token else { return Err(Stop) };
        let mut count = 0usize;
        while self.eat(sign).is_some() {
            count += 1;
        }
        if sign == "-" && count == 1 && matches!(self.peek().token, Token::Int | Token::Float) {
            let number = self.take();
            let literal = self.number(number, Some(first))?;
            return self.members(literal);
        }
        let operand = self.primary(false)?;
        let operand = self.members(operand)?;
        if count.is_multiple_of(2) {
            return Ok(operand);
        }
        let id = self.id_at(first.at);
        self.node(id, Kind::Call { function: function.into(), target: None, args: vec![operand] })
    }

    /// What may follow a value: selections, calls upon it, indices.
    fn members(&mut self, mut expr: Expr) -> Result<Expr, Stop> {
        loop {
            if let Some(dot) = self.eat(".") {
                let optional = self.eat("?").is_some();
                let name = self.take();
                let field: Arc<str> = match name.token {
                    Token::Ident if matches!(name.text, "true" | "false" | "null") => {
                        let message = format!("mismatched input '{}' expecting IDENTIFIER", name.text);
                        return Err(self.syntax(name, message));
                    }
                    Token::Ident => name.text.into(),
                    Token::Sign("in") => {
                        return Err(self.syntax(name, "no viable alternative at input '.in'".into()));
                    }
                    // As in upstream's environment, which leaves this syntax off.
                    Token::EscapedIdent => {
                        self.report(name.at, "unsupported syntax: '`'");
                        "".into()
                    }
                    Token::End => {
                        return Err(self.syntax(name, "no viable alternative at input '.'".into()));
                    }
                    _ => {
                        let message = format!("no viable alternative at input '.{}'", name.text);
                        return Err(self.syntax(name, message));
                    }
                };
                if optional {
                    let id = self.id_at(dot.at);
                    let field_id = self.id_at(name.at);
                    let field = self.node(field_id, Kind::Literal(Value::String(Text::Shared(field))))?;
                    let args = vec![expr, field];
                    expr =
                        self.node(id, Kind::Call { function: op::OPT_SELECT.into(), target: None, args })?;
                    self.count(&mut expr)?;
                } else if let Some(open) = if name.token == Token::Ident { self.eat("(") } else { None } {
                    let id = self.id_at(open.at);
                    let args = self.args()?;
                    let visits = args.iter().map(|arg| arg.visits).max().unwrap_or(0).max(expr.visits);
                    expr = macros::expand(self, id, &field, Some(expr), args)?;
                    expr.visits = visits;
                    self.count(&mut expr)?;
                } else {
                    let id = self.id_at(dot.at);
                    expr = self.counted(id, Kind::Select { operand: Box::new(expr), field, test: false })?;
                }
            } else if let Some(open) = self.eat("[") {
                let optional = self.eat("?").is_some();
                let id = self.id_at(open.at);
                let index = self.expr(false)?;
                self.close("]")?;
                let function = if optional { op::OPT_INDEX } else { op::INDEX };
                expr = self.counted(
                    id,
                    Kind::Call { function: function.into(), target: None, args: vec![expr, index] },
                )?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn args(&mut self) -> Result<Vec<Expr>, Stop> {
        let mut args = Vec::new();
        if self.eat(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr(args.is_empty())?);
            if self.eat(",").is_none() {
                self.close(")")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self, closes: bool) -> Result<Expr, Stop> {
        let first = self.take();
        match first.token {
            Token::Int | Token::Uint | Token::Float => self.number(first, None),
            Token::String | Token::Bytes => self.text(first),
            Token::Ident => self.name(first, None),
            Token::Sign(".") if self.peek().token == Token::Ident => {
                let name = self.take();
                self.name(name, Some(first))
            }
            Token::Sign("(") => {
                let expr = self.expr(false)?;
                self.close(")")?;
                Ok(expr)
            }
            Token::Sign("[") => self.list(first),
            Token::Sign("{") => self.map(first),
            _ => {
                self.next -= 1;
                Err(self.unexpected(first, closes))
            }
        }
    }

    fn unexpected(&mut self, found: Lexeme<'s>, closes: bool) -> Stop {
        let after = self.tokens.get(self.next + 1).map(|after| after.token);
        let helps = matches!(
            after,
            Some(Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes | Token::Ident)
                | Some(Token::Sign("[" | "{" | "(" | "." | "-" | "!"))
        );
        let what = if helps && found.token != Token::End { "extraneous" } else { "mismatched" };
        let starts = if closes { STARTS.replace("'(', ", "'(', ')', ") } else { STARTS.to_owned() };
        self.syntax(found, format!("{what} input '{}' expecting {{{starts}}}", found.text))
    }

    fn literal(&mut self, at: u32, value: Value<'static>) -> Result<Expr, Stop> {
        let id = self.id_at(at);
        self.node(id, Kind::Literal(value))
    }
    fn broken(&mut self, at: u32, message: impl Into<String>) -> Result<Expr, Stop> {
        self.report(at, message);
        let id = self.id_at(at);
        self.node(id, Kind::Broken)
    }

    fn number(&mut self, number: Lexeme<'s>, sign: Option<Lexeme<'s>>) -> Result<Expr, Stop> {
        let at = sign.map_or(number.at, |sign| sign.at);
        let minus = if sign.is_some() { "-" } else { "" };
        let (radix, digits) = match number.text.strip_prefix("0x") {
            Some(hex) => (16, hex),
            None => (10, number.text),
        };
        match number.token {
            Token::Float => match format!("{minus}{}", number.text).parse::<f64>() {
                Ok(value) if value.is_finite() => self.literal(at, Value::Double(value)),
                _ => self.broken(at, "invalid double literal"),
            },
            Token::Uint => match u64::from_str_radix(digits.trim_end_matches(['u', 'U']), radix) {
                Ok(value) => self.literal(at, Value::Uint(value)),
                Err(_) => self.broken(at, "invalid uint literal"),
            },
            _ => match i64::from_str_radix(&format!("{minus}{digits}"), radix) {
                Ok(value) => self.literal(at, Value::Int(value)),
                Err(_) => self.broken(at, "invalid int literal"),
            },
        }
    }

    fn text(&mut self, found: Lexeme<'s>) -> Result<Expr, Stop> {
        let is_bytes = found.token == Token::Bytes;
        let spelt = if is_bytes { &found.text[1..] } else { found.text };
        match unescape(spelt, is_bytes) {
            Err(message) => self.broken(found.at, message),
            Ok(bytes) if is_bytes => self.literal(found.at, Value::Bytes(bytes.into())),
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => self.literal(found.at, Value::String(Text::Shared(text.into()))),
                Err(_) => self.broken(found.at, "unable to unescape string"),
            },
        }
    }

    /// A name, a call of it, or a message built of it.
    fn name(&mut self, name: Lexeme<'s>, dot: Option<Lexeme<'s>>) -> Result<Expr, Stop> {
        let start = dot.map_or(name.at, |dot| dot.at);
        if dot.is_none() {
            let value = match name.text {
                "true" => Some(Value::Bool(true)),
                "false" => Some(Value::Bool(false)),
                "null" => Some(Value::Null),
                _ => None,
            };
            if let Some(value) = value {
                return self.literal(name.at, value);
            }
        }
        if let Some((full, open)) = self.message_name(name) {
            let id = self.id_at(open.at);
            let fields = self.fields()?;
            let full = if dot.is_some() { format!(".{full}") } else { full };
            return self.node(id, Kind::Struct { name: full.into(), fields });
        }
        let reserved = RESERVED.contains(&name.text);
        let spelt: Arc<str> = if dot.is_some() { format!(".{}", name.text).into() } else { name.text.into() };
        if let Some(open) = self.eat("(") {
            let id = self.id_at(open.at);
            let args = self.args()?;
            if reserved {
                return self.broken(start, format!("reserved identifier: {}", name.text));
            }
            return macros::expand(self, id, &spelt, None, args);
        }
        if reserved {
            return self.broken(start, format!("reserved identifier: {}", name.text));
        }
        let id = self.id_at(name.at);
        self.node(id, Kind::Ident(spelt))
    }

    /// Looks ahead for `a.b.c {`, which makes the names one type's.
    fn message_name(&mut self, first: Lexeme<'s>) -> Option<(String, Lexeme<'s>)> {
        let mut at = self.next;
        let mut full = first.text.to_owned();
        loop {
            let sign = self.tokens.get(at)?;
            match sign.token {
                Token::Sign("{") => {
                    let open = *sign;
                    self.next = at + 1;
                    return Some((full, open));
                }
                Token::Sign(".") => {
                    let part = self.tokens.get(at + 1).filter(|part| part.token == Token::Ident)?;
                    full.push('.');
                    full.push_str(part.text);
                    at += 2;
                }
                _ => return None,
            }
        }
    }

    fn list(&mut self, open: Lexeme<'s>) -> Result<Expr, Stop> {
        let id = self.id_at(open.at);
        let (mut items, mut optional) = (Vec::new(), Vec::new());
        loop {
            // A comma may also end the list, or be all there is in it.
            if self.is("]") || (self.peek().token == Token::End && !items.is_empty()) {
                self.close("]")?;
                break;
            }
            if items.is_empty() && self.eat(",").is_some() {
                self.close("]")?;
                break;
            }
            optional.push(self.eat("?").is_some());
            items.push(self.expr(false)?);
            if self.eat(",").is_none() {
                self.close("]")?;
                break;
            }
        }
        self.node(id, Kind::List { items, optional })
    }

    fn map(&mut self, open: Lexeme<'s>) -> Result<Expr, Stop> {
        let id = self.id_at(open.at);
        let mut entries = Vec::new();
        loop {
            if self.is("}") || (self.peek().token == Token::End && !entries.is_empty()) {
                self.close("}")?;
                break;
            }
            if entries.is_empty() && self.eat(",").is_some() {
                self.close("}")?;
                break;
            }
            let optional = self.eat("?").is_some();
            let key = self.expr(false)?;
            self.close(":")?;
            let value = self.expr(false)?;
            entries.push(Entry { key, value, optional });
            if self.eat(",").is_none() {
                self.close("}")?;
                break;
            }
        }
        self.node(id, Kind::Map(entries))
    }

    fn fields(&mut self) -> Result<Vec<StructField>, Stop> {
        let mut fields = Vec::new();
        loop {
            if self.eat("}").is_some() {
                return Ok(fields);
            }
            if fields.is_empty() && self.eat(",").is_some() {
                self.close("}")?;
                return Ok(fields);
            }
            let optional = self.eat("?").is_some();
            let name = self.take();
            match name.token {
                Token::Ident => {}
                Token::EscapedIdent => self.report(name.at, "unsupported syntax: '`'"),
                _ => {
                    let message = format!("mismatched input '{}' expecting IDENTIFIER", name.text);
                    return Err(self.syntax(name, message));
                }
            }
            let colon = self.peek();
            self.close(":")?;
            let id = self.id_at(colon.at);
            let value = self.expr(false)?;
            fields.push(StructField { id, name: name.text.into(), value, optional });
            if self.eat(",").is_none() {
                self.close("}")?;
                return Ok(fields);
            }
        }
    }
}
