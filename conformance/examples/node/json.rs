//! The little of JSON that a node needs.

#[derive(Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl From<usize> for Json {
    fn from(number: usize) -> Self {
        Json::Number(number as i64)
    }
}

impl From<Option<usize>> for Json {
    fn from(number: Option<usize>) -> Self {
        number.map_or(Json::Null, Json::from)
    }
}

impl From<Vec<usize>> for Json {
    fn from(numbers: Vec<usize>) -> Self {
        Json::List(numbers.into_iter().map(Json::from).collect())
    }
}

impl Json {
    /// An object whose keys are numbers.
    pub fn map(pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        Json::Object(pairs.into_iter().map(|(key, number)| (key.to_string(), number.into())).collect())
    }

    pub fn get(&self, key: &str) -> &Json {
        self.pairs().iter().find(|(name, _)| name == key).map_or(&Json::Null, |(_, value)| value)
    }

    pub fn pairs(&self) -> &[(String, Json)] {
        if let Json::Object(pairs) = self { pairs } else { &[] }
    }

    pub fn list(&self) -> &[Json] {
        if let Json::List(list) = self { list } else { &[] }
    }

    pub fn text_or_none(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    pub fn text(&self) -> &str {
        self.text_or_none().unwrap_or("")
    }

    pub fn texts(&self) -> Vec<String> {
        self.list().iter().map(|one| one.text().to_string()).collect()
    }

    pub fn int_or(&self, otherwise: i64) -> i64 {
        if let Json::Number(number) = self { *number } else { otherwise }
    }

    pub fn int(&self) -> i64 {
        self.int_or(0)
    }

    pub fn size(&self) -> usize {
        self.int().max(0) as usize
    }

    /// The value of a line. kvspec writes no fractions, and nothing that is malformed.
    pub fn read(line: &str) -> Json {
        Json::value(&mut line.chars().peekable())
    }

    fn value(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>) -> Json {
        while rest.next_if(|c| c.is_whitespace() || *c == ',' || *c == ':').is_some() {}
        match rest.next() {
            Some('"') => Json::Text(Json::string(rest)),
            Some('[') => {
                let mut list = vec![];
                while !Json::ends(rest, ']') {
                    list.push(Json::value(rest));
                }
                Json::List(list)
            }
            Some('{') => {
                let mut pairs = vec![];
                while !Json::ends(rest, '}') {
                    let key = Json::value(rest).text().to_string();
                    pairs.push((key, Json::value(rest)));
                }
                Json::Object(pairs)
            }
            Some(first) => {
                let mut word = first.to_string();
                while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || "+-.".contains(*c)) {
                    word.push(c);
                }
                match word.as_str() {
                    "null" => Json::Null,
                    "true" | "false" => Json::Bool(word == "true"),
                    number => Json::Number(number.parse().expect("a number")),
                }
            }
            None => panic!("the line ends in the middle of a value"),
        }
    }

    fn ends(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>, end: char) -> bool {
        while rest.next_if(|c| c.is_whitespace() || *c == ',').is_some() {}
        rest.next_if_eq(&end).is_some()
    }

    /// The rest of a string, whose first quotation mark has been read.
    fn string(rest: &mut impl Iterator<Item = char>) -> String {
        let mut units: Vec<u16> = vec![];
        loop {
            let c = rest.next().expect("the end of a string");
            let c = match c {
                '"' => return String::from_utf16(&units).expect("pairs of surrogates"),
                '\\' => match rest.next().expect("an escape") {
                    'u' => {
                        let digits: String = rest.by_ref().take(4).collect();
                        units.push(u16::from_str_radix(&digits, 16).expect("four hexadecimal digits"));
                        continue;
                    }
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    other => other,
                },
                c => c,
            };
            units.extend(c.encode_utf16(&mut [0; 2]).iter());
        }
    }

    pub fn write(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => out.push_str(&number.to_string()),
            Json::Text(text) => Json::write_text(text, out),
            Json::List(list) => {
                out.push('[');
                for (index, one) in list.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    one.write(out);
                }
                out.push(']');
            }
            Json::Object(pairs) => {
                out.push('{');
                for (index, (key, value)) in pairs.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    Json::write_text(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    fn write_text(text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
