package distributed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// listen returns a socket that listens on the address of rank 0, and on no other address of the
// machine.
func listen(ctx context.Context, p place) (int, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", p.address())
	if err != nil {
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			err = fmt.Errorf("rank 0 cannot serve the store on %s, because another program listens there: set MASTER_PORT to a free port on all ranks", p.address())
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			err = fmt.Errorf("rank 0 cannot serve the store on %s, which is no address of this machine: set MASTER_ADDR to an address of the machine of rank 0 on all ranks", p.address())
		default:
			err = fmt.Errorf("rank 0 cannot serve the store: %w", err)
		}
		return -1, err
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return -1, err
	}
	copied := -1
	if failed := raw.Control(func(fd uintptr) {
		copied, err = copySocket(fd)
	}); failed != nil {
		err = failed
	}
	return copied, err
}

// loopback returns the address of a host name if other machines cannot reach this address, and
// otherwise "". Some systems give the machine's own name such an address.
func loopback(ctx context.Context, host string) string {
	if host == "localhost" || net.ParseIP(host) != nil {
		return "" // it says so itself
	}
	all, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil || len(all) == 0 || !all[0].IP.IsLoopback() {
		return ""
	}
	return all[0].IP.String()
}

// reach waits until the store accepts connections. It returns the address of this machine on the
// way there: at this address the other ranks reach this one.
func reach(ctx context.Context, p place) (string, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	var why error
	for {
		c, err := dialer.DialContext(ctx, "tcp", p.address())
		if err == nil {
			host, _, err := net.SplitHostPort(c.LocalAddr().String())
			c.Close()
			if err == nil {
				host, err = interfaceAddress(os.Getenv("GLOO_SOCKET_IFNAME"), host)
			}
			return host, err
		}
		if ctx.Err() == nil { // the error of the last attempt of its own is better than that of ctx
			why = err
		}
		select {
		case <-ctx.Done():
			who := "rank 0 serves it"
			if p.served {
				who = "the launcher serves it"
			}
			if why == nil {
				why = ctx.Err()
			}
			return "", fmt.Errorf("the store of the run at %s does not answer (%s; MASTER_ADDR and MASTER_PORT name it): %v: %w", p.address(), who, why, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// interfaceAddress returns the first address of the interface `name`, or `host` if the name is
// empty.
func interfaceAddress(name, host string) (string, error) {
	if name == "" {
		return host, nil
	}
	i, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("GLOO_SOCKET_IFNAME=%.40q: %w", name, err)
	}
	addresses, err := i.Addrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if a, ok := a.(*net.IPNet); ok && !a.IP.IsLinkLocalUnicast() {
			return a.IP.String(), nil
		}
	}
	return "", fmt.Errorf("GLOO_SOCKET_IFNAME=%.40q has no address", name)
}
