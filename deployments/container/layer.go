// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entry is one file of a layer. At most one of text, source and link is set; none means a directory.
type entry struct {
	path   string // absolute, in the image
	mode   int64
	text   string
	source string // a file of this machine
	link   string // target of a symbolic link
}

// tarOf writes the entries and the directories above them, ordered by path, owned by root and without times.
func tarOf(entries []entry) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range withParents(entries) {
		if err := e.write(w); err != nil {
			return nil, fmt.Errorf("add %s: %w", e.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (e entry) write(w *tar.Writer) error {
	header := &tar.Header{Name: e.path[1:], Mode: e.mode, Format: tar.FormatPAX}
	var data []byte
	switch {
	case e.link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
	case e.source != "":
		var err error
		if data, err = os.ReadFile(e.source); err != nil {
			return err
		}
		header.Typeflag, header.Size = tar.TypeReg, int64(len(data))
	case e.text != "":
		data = []byte(e.text)
		header.Typeflag, header.Size = tar.TypeReg, int64(len(data))
	default:
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func withParents(entries []entry) []entry {
	all := map[string]entry{}
	for _, e := range entries {
		for dir := path.Dir(e.path); dir != "/"; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = entry{path: dir, mode: 0o755}
			}
		}
	}
	for _, e := range entries {
		all[e.path] = e
	}
	sorted := make([]entry, 0, len(all))
	for _, e := range all {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return sorted
}

// fileLayer is a compressed layer in a file named after its uncompressed content, so that an unchanged layer is not
// compressed again.
type fileLayer struct {
	diffID, digest v1.Hash
	size           int64
	path           string
}

var _ v1.Layer = fileLayer{}

// DiffID is the hash of the uncompressed content.
func (l fileLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// Digest is the hash of the compressed content.
func (l fileLayer) Digest() (v1.Hash, error) { return l.digest, nil }

// Size is that of the compressed content, in bytes.
func (l fileLayer) Size() (int64, error) { return l.size, nil }

// MediaType is always that of a gzipped OCI layer.
func (l fileLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

// Compressed opens the layer as it is stored.
func (l fileLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.path) }

// Uncompressed opens the layer as a tar stream.
func (l fileLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// newLayer compresses the entries into a file of dir.
func newLayer(dir string, entries []entry) (v1.Layer, error) {
	content, err := tarOf(entries)
	if err != nil {
		return nil, err
	}
	diffID, _, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	file := layerFile(dir, diffID)
	if _, err := os.Stat(file); err != nil {
		if err := compress(file, content); err != nil {
			return nil, fmt.Errorf("compress layer: %w", err)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	digest, size, err := v1.SHA256(f)
	if err != nil {
		return nil, err
	}
	return fileLayer{diffID, digest, size, file}, nil
}

func compress(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := z.Write(content); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return writeFile(file, b.Bytes())
}

// writeFile leaves the whole file or none, so that an interrupted build is no broken cache.
func writeFile(file string, data []byte) error {
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// prune removes the layers of earlier builds that none of the images has.
func prune(dir string, images []named) error {
	used := map[string]bool{}
	for _, image := range images {
		layers, err := image.image.Layers()
		if err != nil {
			return err
		}
		for _, layer := range layers {
			diffID, err := layer.DiffID()
			if err != nil {
				return err
			}
			used[layerFile(dir, diffID)] = true
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if used[file] {
			continue
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove an old layer: %w", err)
		}
	}
	return nil
}

func layerFile(dir string, diffID v1.Hash) string { return filepath.Join(dir, diffID.Hex+".tar.gz") }
