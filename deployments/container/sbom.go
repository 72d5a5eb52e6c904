// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// spdxDocument is the used part of SPDX 2.3 in JSON.
type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	DataLicense   string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	CreationInfo  spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name             string          `json:"name"`
	ID               string          `json:"SPDXID"`
	Version          string          `json:"versionInfo,omitempty"`
	DownloadLocation string          `json:"downloadLocation"`
	FilesAnalyzed    bool            `json:"filesAnalyzed"`
	License          string          `json:"licenseConcluded"`
	References       []spdxReference `json:"externalRefs,omitempty"`
}

type spdxReference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// sbom lists the programs, the Go modules that each is compiled from, as the program itself says, and the libraries of
// the image's C library.
func sbom(programs, libraries []string, version, created string) (spdxDocument, error) {
	document := spdxDocument{Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT",
		Name:         chartName + " " + version,
		Namespace:    "https://github.com/gpudra/gpu-dra-driver/spdx/" + version,
		CreationInfo: spdxCreation{Created: created, Creators: []string{"Tool: gpu-dra-driver/deployments/container"}}}
	packages := map[string]spdxPackage{}
	relate := func(from, kind, to string) {
		document.Relationships = append(document.Relationships, spdxRelationship{from, kind, to})
	}
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return spdxDocument{}, fmt.Errorf("list modules of %s: %w", file, err)
		}
		program := newPackage("program", path.Base(path.Dir(file))+"/"+path.Base(file), version)
		packages[program.ID] = program
		relate(document.ID, "DESCRIBES", program.ID)
		for _, dependency := range info.Deps {
			if dependency.Replace != nil {
				dependency = dependency.Replace
			}
			module := goModule(dependency.Path, dependency.Version)
			packages[module.ID] = module
			relate(program.ID, "DEPENDS_ON", module.ID)
		}
		standard := goModule("stdlib", strings.TrimPrefix(info.GoVersion, "go"))
		packages[standard.ID] = standard
		relate(program.ID, "DEPENDS_ON", standard.ID)
	}
	for _, name := range libraries {
		library := newPackage("library", name, "")
		packages[library.ID] = library
		relate(document.ID, "DESCRIBES", library.ID)
	}
	document.Packages = slices.SortedFunc(maps.Values(packages),
		func(a, b spdxPackage) int { return cmp.Compare(a.ID, b.ID) })
	return document, nil
}

// notInID is what an SPDX identifier must not contain.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newPackage(kind, name, version string) spdxPackage {
	id := "SPDXRef-" + kind + "-" + notInID.ReplaceAllString(strings.Trim(name+"-"+version, "-"), "-")
	return spdxPackage{Name: name, ID: id, Version: version, DownloadLocation: noAssertion, License: noAssertion}
}

func goModule(name, version string) spdxPackage {
	p := newPackage("module", name, version)
	p.References = []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + name + "@" + version}}
	return p
}
