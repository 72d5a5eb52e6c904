// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
)

// forward hands every connection that arrives at the inherited listener on to
// the address. A socket stays in the network namespace it was made in, so the
// listener is on the host's 127.0.0.1 while the address is the machine's: a
// door that needs no link between the two, and closes with the machine.
func forward(fd uintptr, address string) error {
	file := os.NewFile(fd, "listener")
	defer file.Close() // FileListener has its own copy
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("take over listener: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				log.Printf("accept connection: %v", err)
				return
			}
			go relay(conn, address)
		}
	}()
	return nil
}

func relay(outside net.Conn, address string) {
	defer outside.Close()
	inside, err := net.Dial("tcp", address)
	if err != nil {
		return // the caller sees a closed connection, as of a server that is not up
	}
	defer inside.Close()
	done := make(chan struct{}, 2)
	go copyHalf(inside, outside, done)
	go copyHalf(outside, inside, done)
	<-done
	<-done
}

// copyHalf copies one direction and passes its end on.
func copyHalf(to, from net.Conn, done chan<- struct{}) {
	_, err := io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite()
	} else {
		_ = to.Close()
		_ = from.Close()
	}
	done <- struct{}{}
}
