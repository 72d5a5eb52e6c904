// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"fmt"
	"os"
	"path/filepath"
)

// Writer writes credentials into a folder. After the first error it does nothing; Err holds the error.
type Writer struct {
	Dir    string
	CA     *Authority // signs the kubeconfigs' certificates and is their CA
	Server string     // the server in the kubeconfigs
	Err    error
}

// Authority writes NAME.crt and NAME.key.
func (w *Writer) Authority(name string, a *Authority) {
	w.pair(name, a.Pair)
}

// Trust writes NAME.crt only: the certificate without the key.
func (w *Writer) Trust(name string, a *Authority) {
	w.file(name+".crt", a.CertPEM())
}

// Pair writes NAME.crt and NAME.key, signed by the authority.
func (w *Writer) Pair(name string, by *Authority, subject Subject) {
	w.pair(name, func() (Pair, error) { return by.Issue(subject) })
}

// SigningKey writes a new key pair, NAME.key and NAME.pub.
func (w *Writer) SigningKey(name string) {
	if w.Err != nil {
		return
	}
	private, public, err := NewSigningKey()
	if err != nil {
		w.Err = err
		return
	}
	w.file(name+".key", private)
	w.file(name+".pub", public)
}

// Kubeconfig writes NAME.conf for the subject.
func (w *Writer) Kubeconfig(name string, subject Subject) {
	if w.Err != nil {
		return
	}
	client, err := w.CA.Issue(subject)
	if err != nil {
		w.Err = err
		return
	}
	data, err := Kubeconfig("cluster", w.Server, w.CA.CertPEM(), client)
	if err != nil {
		w.Err = err
		return
	}
	w.file(name+".conf", data)
}

func (w *Writer) pair(name string, issue func() (Pair, error)) {
	if w.Err != nil {
		return
	}
	pair, err := issue()
	if err != nil {
		w.Err = err
		return
	}
	w.file(name+".crt", pair.Cert)
	w.file(name+".key", pair.Key)
}

func (w *Writer) file(name string, data []byte) {
	if w.Err != nil {
		return
	}
	if err := os.WriteFile(filepath.Join(w.Dir, name), data, 0o600); err != nil {
		w.Err = fmt.Errorf("write credentials: %w", err)
	}
}
