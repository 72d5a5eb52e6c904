// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
)

// EmptyLibrary returns a shared library with a soname and no symbols. The dynamic linker, ldconfig and the CDI tools
// accept it as a library of the driver. The text follows at its end, for people.
func EmptyLibrary(soname, text string) []byte {
	const (
		header, segments, sections, symbol = 64, 2 * 56, 3 * 64, 24
		hashAt                             = header + segments
		symbolsAt                          = hashAt + 16
		stringsAt                          = symbolsAt + symbol
	)
	names := append([]byte{0}, soname+"\x00"...)
	dynamicAt := uint64(stringsAt+len(names)+7) &^ 7
	dynamic := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_HASH), Val: hashAt},
		{Tag: int64(elf.DT_SYMTAB), Val: symbolsAt},
		{Tag: int64(elf.DT_SYMENT), Val: symbol},
		{Tag: int64(elf.DT_STRTAB), Val: stringsAt},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_NULL)},
	}
	dynamicSize := uint64(len(dynamic) * 16)
	sectionsAt := dynamicAt + dynamicSize
	end := sectionsAt + sections

	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a bytes.Buffer returns no errors
	put(elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB),
			byte(elf.EV_CURRENT)},
		Type: uint16(elf.ET_DYN), Machine: uint16(machine()), Version: uint32(elf.EV_CURRENT), Phoff: header,
		Shoff:  sectionsAt,
		Ehsize: header, Phentsize: 56, Phnum: 2, Shentsize: 64, Shnum: 3, Shstrndx: 1,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Filesz: end, Memsz: end, Align: 4096})
	put(elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynamicAt, Vaddr: dynamicAt,
		Paddr:  dynamicAt,
		Filesz: dynamicSize, Memsz: dynamicSize, Align: 8})
	put([]uint32{1, 1, 0, 0}) // a hash table with one bucket and no symbols
	put(elf.Sym64{})
	b.Write(names)
	b.Write(make([]byte, int(dynamicAt)-b.Len()))
	put(dynamic)
	put(elf.Section64{})
	put(elf.Section64{Type: uint32(elf.SHT_STRTAB), Flags: uint64(elf.SHF_ALLOC), Addr: stringsAt, Off: stringsAt,
		Size: uint64(len(names)), Addralign: 1})
	put(elf.Section64{Type: uint32(elf.SHT_DYNAMIC), Flags: uint64(elf.SHF_ALLOC | elf.SHF_WRITE), Addr: dynamicAt,
		Off:  dynamicAt,
		Size: dynamicSize, Link: 1, Addralign: 8, Entsize: 16})
	b.WriteString("\n" + text + "\n")
	return b.Bytes()
}

func machine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}
