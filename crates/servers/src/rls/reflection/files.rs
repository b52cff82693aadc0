//! File descriptors: functions that build them, and an index of their symbols.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};
use std::collections::{HashMap, HashSet};

/// All files and their symbols.
pub(super) struct FileIndex {
    files: Vec<FileDescriptorProto>,
    /// The position in `files` of the file that defines a symbol.
    symbols: HashMap<String, usize>,
}

impl FileIndex {
    pub(super) fn new(files: Vec<FileDescriptorProto>) -> FileIndex {
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
                collect_names(package, message, &mut names);
            }
            symbols.extend(names.into_iter().map(|name| (name, index)));
        }
        FileIndex { files, symbols }
    }

    /// The encoded file of this name and all files that it imports; the file itself is the first.
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

    /// The same for the file that defines a symbol.
    pub(super) fn file_with_symbol(&self, symbol: &str) -> Option<Vec<Vec<u8>>> {
        self.file(self.files[*self.symbols.get(symbol)?].name())
    }

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

fn collect_names(scope: &str, message: &DescriptorProto, names: &mut Vec<String>) {
    let name = format!("{scope}.{}", message.name());
    names.extend(message.enum_type.iter().map(|found| format!("{name}.{}", found.name())));
    for nested in &message.nested_type {
        collect_names(&name, nested, names);
    }
    names.push(name);
}

#[derive(Clone, Copy)]
pub(super) enum FieldType<'a> {
    Scalar(Type),
    /// Fully qualified, with a leading dot.
    Message(&'a str),
    Enum(&'a str),
}

pub(super) fn file(name: &str, package: &str, imports: &[&str]) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|&import| import.to_owned()).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

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

pub(super) fn field(name: &str, number: i32, field_type: FieldType<'_>) -> FieldDescriptorProto {
    let (r#type, type_name) = match field_type {
        FieldType::Scalar(scalar) => (scalar, None),
        FieldType::Message(name) => (Type::Message, Some(name)),
        FieldType::Enum(name) => (Type::Enum, Some(name)),
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

pub(super) fn repeated(name: &str, number: i32, field_type: FieldType<'_>) -> FieldDescriptorProto {
    FieldDescriptorProto { label: Some(Label::Repeated.into()), ..field(name, number, field_type) }
}

/// Puts the fields with these numbers into a oneof.
pub(super) fn oneof(message: &mut DescriptorProto, name: &str, numbers: &[i32]) {
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
pub(super) fn enumeration(name: &str, names: &[&str]) -> EnumDescriptorProto {
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

/// Which sides of a method stream messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    Neither,
    Server,
    Both,
}

/// A method; its types have a leading dot.
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

pub(super) fn service<const N: usize>(
    name: &str,
    method: [MethodDescriptorProto; N],
) -> ServiceDescriptorProto {
    ServiceDescriptorProto { name: Some(name.to_owned()), method: method.into(), options: None }
}
