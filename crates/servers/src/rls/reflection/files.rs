//! File descriptors: short ways to write them, and an index of what is in them.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};
use std::collections::{HashMap, HashSet};

/// The files that there are.
pub(super) struct Known {
    files: Vec<FileDescriptorProto>,
    /// The index of the file in which a symbol is.
    symbols: HashMap<String, usize>,
}

impl Known {
    pub(super) fn new(files: Vec<FileDescriptorProto>) -> Known {
        let mut symbols = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            let mut names = Vec::new();
            let package = file.package();
            names.extend(file.enum_type.iter().map(|found| format!("{package}.{}", found.name())));
            for service in &file.service {
                let name = format!("{package}.{}", service.name());
                names.extend(
                    service.method.iter().map(|method| format!("{name}.{}", method.name())),
                );
                names.push(name);
            }
            for message in &file.message_type {
                names_of(package, message, &mut names);
            }
            symbols.extend(names.into_iter().map(|name| (name, index)));
        }
        Known { files, symbols }
    }

    /// The file of this name and all that it imports, encoded; itself is the first.
    pub(super) fn file(&self, name: &str) -> Option<Vec<Vec<u8>>> {
        let mut wanted = vec![self.by_name(name)?];
        let mut seen: HashSet<&str> = wanted.iter().map(|file| file.name()).collect();
        let mut next = 0;
        while let Some(file) = wanted.get(next) {
            let new = file.dependency.iter().filter(|name| seen.insert(name.as_str()));
            let new: Vec<_> = new.filter_map(|name| self.by_name(name)).collect();
            wanted.extend(new);
            next += 1;
        }
        Some(wanted.into_iter().map(Message::encode_to_vec).collect())
    }

    /// The same of the file that has this symbol.
    pub(super) fn file_of(&self, symbol: &str) -> Option<Vec<Vec<u8>>> {
        self.file(self.files[*self.symbols.get(symbol)?].name())
    }

    /// The names of all services.
    pub(super) fn services(&self) -> impl Iterator<Item = String> {
        self.files.iter().flat_map(|file| {
            file.service.iter().map(|service| format!("{}.{}", file.package(), service.name()))
        })
    }

    #[cfg(test)]
    pub(super) fn files(&self) -> &[FileDescriptorProto] {
        &self.files
    }

    fn by_name(&self, name: &str) -> Option<&FileDescriptorProto> {
        self.files.iter().find(|file| file.name() == name)
    }
}

fn names_of(scope: &str, message: &DescriptorProto, names: &mut Vec<String>) {
    let name = format!("{scope}.{}", message.name());
    names.extend(message.enum_type.iter().map(|found| format!("{name}.{}", found.name())));
    for nested in &message.nested_type {
        names_of(&name, nested, names);
    }
    names.push(name);
}

/// What a field holds.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Scalar(Type),
    /// Fully qualified, with a dot in front.
    Message(&'static str),
    Enum(&'static str),
}

/// A file in proto3.
pub(super) fn file(name: &str, package: &str, imports: &[&str]) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|&import| import.to_owned()).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

/// A message.
pub(super) fn message<const N: usize>(
    name: &str,
    field: [FieldDescriptorProto; N],
) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.to_owned()),
        field: field.into(),
        ..DescriptorProto::default()
    }
}

/// A field that is there once.
pub(super) fn one(name: &str, number: i32, kind: Kind) -> FieldDescriptorProto {
    let (r#type, type_name) = match kind {
        Kind::Scalar(scalar) => (scalar, None),
        Kind::Message(name) => (Type::Message, Some(name)),
        Kind::Enum(name) => (Type::Enum, Some(name)),
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(r#type.into()),
        type_name: type_name.map(str::to_owned),
        ..FieldDescriptorProto::default()
    }
}

/// A field that may be there any number of times.
pub(super) fn many(name: &str, number: i32, kind: Kind) -> FieldDescriptorProto {
    FieldDescriptorProto { label: Some(Label::Repeated.into()), ..one(name, number, kind) }
}

/// Makes the fields with these numbers alternatives of each other.
pub(super) fn either(message: &mut DescriptorProto, name: &str, numbers: &[i32]) {
    let index = i32::try_from(message.oneof_decl.len()).ok();
    let name = Some(name.to_owned());
    message.oneof_decl.push(OneofDescriptorProto { name, ..OneofDescriptorProto::default() });
    for field in &mut message.field {
        if numbers.contains(&field.number()) {
            field.oneof_index = index;
        }
    }
}

/// An enum whose values count from 0.
pub(super) fn values(name: &str, names: &[&str]) -> EnumDescriptorProto {
    let value = |(number, &name): (i32, &&str)| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: (0..).zip(names).map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

/// How many messages each side of a call sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    Neither,
    Server,
    Both,
}

/// A method, of types with a dot in front.
pub(super) fn method(
    name: &str,
    input: &str,
    output: &str,
    streams: Streams,
) -> MethodDescriptorProto {
    MethodDescriptorProto {
        name: Some(name.to_owned()),
        input_type: Some(input.to_owned()),
        output_type: Some(output.to_owned()),
        client_streaming: Some(streams == Streams::Both),
        server_streaming: Some(streams != Streams::Neither),
        options: None,
    }
}

/// A service.
pub(super) fn service<const N: usize>(
    name: &str,
    method: [MethodDescriptorProto; N],
) -> ServiceDescriptorProto {
    ServiceDescriptorProto { name: Some(name.to_owned()), method: method.into(), options: None }
}
