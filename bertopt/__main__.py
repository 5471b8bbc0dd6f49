from bertopt.cli import main

main()
