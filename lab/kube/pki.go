package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"
)

// writeCertificates makes the CA and the service account key when they are missing, and new
// certificates of the API server, as a server and as a client.
func writeCertificates(cfg config, p statePaths) error {
	ca, caKey, err := loadOrMakeCA(p.caCert, p.caKey)
	if err != nil {
		return err
	}
	if _, err := loadOrMakeKey(p.serviceAccountKey); err != nil {
		return err
	}
	serverKey, err := loadOrMakeKey(p.serverKey)
	if err != nil {
		return err
	}
	template := certificate("kube-apiserver")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, cfg.address.AsSlice()}
	for _, prefix := range cfg.serviceCIDRs {
		template.IPAddresses = append(template.IPAddresses, firstAddr(prefix).AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, serverKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("signing the serving certificate: %w", err)
	}
	if err := writePEM(p.serverCert, "CERTIFICATE", der); err != nil {
		return err
	}
	client := certificate("kube-apiserver-kubelet-client")
	client.Subject.Organization = []string{"system:masters"} // a kubelet asks the API server what its client may do
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if der, err = x509.CreateCertificate(rand.Reader, client, ca, serverKey.Public(), caKey); err != nil {
		return fmt.Errorf("signing the client certificate for kubelets: %w", err)
	}
	return writePEM(p.kubeletClientCert, "CERTIFICATE", der)
}

// firstAddr is the cluster IP of the service "kubernetes".
func firstAddr(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

// certificate is the template that all certificates here share.
func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:      pkix.Name{CommonName: name},
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotBefore:    time.Now().Add(-time.Hour), // clocks of others
		NotAfter:     time.Now().AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func loadOrMakeCA(certPath, keyPath string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := loadOrMakeKey(keyPath)
	if err != nil {
		return nil, nil, err
	}
	der, err := readPEM(certPath, "CERTIFICATE")
	if errors.Is(err, fs.ErrNotExist) {
		template := certificate("hairpin-lab-ca")
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
		if der, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key); err != nil {
			return nil, nil, fmt.Errorf("signing the CA: %w", err)
		}
		err = writePEM(certPath, "CERTIFICATE", der)
	}
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parsing %s: %w", certPath, err)
	}
	return ca, key, nil
}

// loadOrMakeKey reads a P-256 key, the fastest kind that Kubernetes also takes for service
// accounts, or makes one.
func loadOrMakeKey(path string) (*ecdsa.PrivateKey, error) {
	der, err := readPEM(path, "EC PRIVATE KEY")
	if err == nil {
		key, err := x509.ParseECPrivateKey(der)
		if err != nil {
			return nil, fmt.Errorf("parsing %s: %w", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func readPEM(path, kind string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s: no PEM block %q", path, kind)
	}
	return block.Bytes, nil
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
