package kafkaserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CAFile is the certificate of the authority that signed the secure listeners'.
func (c *Cluster) CAFile() string { return filepath.Join(c.place.Dir(), "ca.pem") }

func (c *Cluster) keyFile() string { return filepath.Join(c.place.Dir(), "server.pem") }

// ClientFiles are a client's certificate, whose principal is User:Subject, and
// its key.
func (c *Cluster) ClientFiles() (cert, key string) {
	return filepath.Join(c.place.Dir(), "client.pem"), filepath.Join(c.place.Dir(), "client-key.pem")
}

// makeCertificates makes an authority, one certificate for localhost, which all
// nodes use, and one for a client.
func (c *Cluster) makeCertificates() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rig"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		return err
	}
	c.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(c.CAFile(), c.ca, 0o644); err != nil {
		return err
	}
	a := authority{ca, key}
	serverCert, serverKey, err := a.issue(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return err
	}
	clientCert, clientKey, err := a.issue(&x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "millrace"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	certFile, keyFile := c.ClientFiles()
	return errors.Join(os.WriteFile(c.keyFile(), append(serverKey, serverCert...), 0o600),
		os.WriteFile(certFile, clientCert, 0o644), os.WriteFile(keyFile, clientKey, 0o600))
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate and its key, as PEM.
func (a authority) issue(leaf *x509.Certificate) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	leaf.NotBefore, leaf.NotAfter, leaf.KeyUsage = a.cert.NotBefore, a.cert.NotAfter, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, &own.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

func (c *Cluster) secureProperties(n *node) []string {
	return []string{
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d,SECURE://127.0.0.1:%d,MUTUAL://127.0.0.1:%d",
			n.port, n.controller, n.secured, n.mutual),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d,SECURE://localhost:%d,MUTUAL://localhost:%d", n.port, n.secured, n.mutual),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL",
		"listener.name.mutual.ssl.keystore.type=PEM",
		"listener.name.mutual.ssl.keystore.location=" + c.keyFile(),
		"listener.name.mutual.ssl.truststore.type=PEM",
		"listener.name.mutual.ssl.truststore.location=" + c.CAFile(),
		"listener.name.mutual.ssl.client.auth=required",
		"listener.name.secure.ssl.keystore.type=PEM",
		"listener.name.secure.ssl.keystore.location=" + c.keyFile(),
		"listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_" +
			User + `="` + Password + `";`,
		"listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:ANONYMOUS",
	}
}
